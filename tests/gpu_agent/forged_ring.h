// Rings of a test's own, and records that make sense in them.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>

#include "gtest/gtest.h"
#include <sys/mman.h>

#include "gpu_agent/telemetry/reader.h"
#include "passes/base/types.h"

namespace bucketd::agent {

inline constexpr uint32_t kSmall = 8;  // records of a ring that is soon full

inline RunRecord RunOf(uint32_t step) {
  RunRecord record;
  record.plan = 7;
  record.bytes = 4096;
  record.step = step;
  record.kind = static_cast<uint8_t>(CollectiveKind::kAllGather);
  record.dtype = static_cast<uint8_t>(DType::kBF16);
  record.packed = 1;
  record.link = kNoLink;
  return record;
}

// A ring that a test writes by hand, as a process that is not ours would.
class Forged {
 public:
  explicit Forged(uint32_t records = kSmall, int seals = F_SEAL_SHRINK | F_SEAL_GROW)
      : memory_(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    header_.records = records;
    EXPECT_EQ(ftruncate(fd(), static_cast<off_t>(RingBytes(records))), 0);
    EXPECT_EQ(fcntl(fd(), F_ADD_SEALS, seals), 0);
  }
  int fd() const { return memory_.get(); }
  RingHeader& header() { return header_; }
  void Put() const { Put(&header_, sizeof(header_), 0); }
  void Put(const void* what, size_t bytes, size_t at) const {
    EXPECT_EQ(pwrite(fd(), what, bytes, static_cast<off_t>(at)), static_cast<ssize_t>(bytes));
  }
  void Put(const RunRecord& record, uint64_t at) const {
    Put(&record, sizeof(record), sizeof(RingHeader) + at * sizeof(record));
  }
  absl::StatusOr<RingReader> Open() const {
    Put();
    Fd memory(dup(fd()));
    return RingReader::Open(memory);
  }

 private:
  const Fd memory_;
  RingHeader header_;
};

}  // namespace bucketd::agent
