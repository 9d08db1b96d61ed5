#include "gpu_agent/telemetry/reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "passes/base/collectives.h"
#include "passes/base/status_macros.h"
#include "passes/base/types.h"

namespace bucketd::agent {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 46;  // of a bucket, an arena, a process
constexpr uint64_t kMostDropped = 1 << 24;        // between two reads; more is a lie
constexpr int64_t kMostPs = int64_t{1'000'000'000'000} * 3600;

absl::Status NoRing(absl::string_view why) { return absl::FailedPreconditionError(why); }

bool ReadAt(const Fd& file, void* to, size_t bytes, size_t at) {
  return pread(file.get(), to, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
}

// Printable text that ends within its field.
template <size_t N>
bool IsText(const std::array<char, N>& field) {
  const auto end = std::find(field.begin(), field.end(), '\0');
  return end != field.end() && std::all_of(field.begin(), end, [](char c) {
           return absl::ascii_isprint(static_cast<unsigned char>(c));
         });
}

bool Within(int64_t value, int64_t most) { return value >= 0 && value <= most; }

bool Sensible(const RingLink& link) {
  return IsText(link.link_class) && link.size >= 2 && link.size <= (1u << 20) &&
         link.ranks_per_node >= 1 && link.ranks_per_node <= link.size;
}

bool Sensible(const RingPlan& plan) {
  return Within(plan.predicted_exposed_ps, kMostPs) &&
         Within(plan.predicted_peak_bytes, kMostBytes) && Within(plan.arena_bytes, kMostBytes) &&
         plan.part <= static_cast<uint8_t>(GraphPart::kJoint);
}

}  // namespace

absl::StatusOr<RingReader> RingReader::Open(Fd& memory) {
  // Only memory has seals; one that cannot shrink never makes a read wait for a file system.
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return NoRing("no memory that keeps its size");
  }
  RingHeader header;
  struct stat found {};
  if (fstat(memory.get(), &found) != 0 || !ReadAt(memory, &header, sizeof(header), 0)) {
    return NoRing("no header");
  }
  if (header.magic != kRingMagic) return NoRing("no ring");
  if (header.version != kRingVersion) {
    return NoRing(absl::StrCat("a ring of version ", header.version, ", this agent reads version ",
                               kRingVersion, ": install both anew, together"));
  }
  const uint32_t records = header.records;
  if (records == 0 || records > kMostRingRecords || (records & (records - 1)) != 0 ||
      found.st_size != static_cast<off_t>(RingBytes(records))) {
    return NoRing(
        absl::StrCat("says that it has ", records, " records in ", found.st_size, " bytes"));
  }
  if (header.head - header.tail > records) {
    return NoRing(absl::StrCat(header.head - header.tail, " new records in a ring of ", records));
  }
  if (!IsText(header.job)) return NoRing("the job's name is not printable");
  RingReader reader;
  reader.memory_ = std::move(memory);
  reader.records_ = records;
  reader.job_ = header.job.data();
  // Where the agent before this one has read to.
  reader.tail_ = header.tail;
  // What was lost before was counted by that one, or is of a time in which nobody wanted to know. A
  // ring that nobody has read, and that has room, has lost nothing for want of an agent.
  const bool fresh = header.tail == 0 && header.head < records;
  reader.seen_dropped_ = fresh ? 0 : header.dropped;
  RETURN_IF_ERROR(reader.ReadTables(header));
  return reader;
}

absl::Status RingReader::ReadTables(const RingHeader& header) {
  if (header.link_count > kRingLinks || header.plan_count > kRingPlans) {
    return absl::DataLossError(absl::StrCat("says that it has ", header.link_count, " groups and ",
                                            header.plan_count, " plans"));
  }
  const auto take = [](const auto& from, uint32_t count, auto& to) {
    for (size_t i = to.size(); i < count; ++i) {
      if (!bucketd::agent::Sensible(from[i])) return false;
      to.push_back(from[i]);
    }
    return true;
  };
  const size_t known = plans_.size();
  bool sensible = take(header.links, header.link_count, links_) &&
                  take(header.plans, header.plan_count, plans_);
  for (size_t i = 0; i < known; ++i) {
    plans_[i].arena_bytes = header.plans[i].arena_bytes;
    sensible = sensible && bucketd::agent::Sensible(plans_[i]);
  }
  if (sensible) return absl::OkStatus();
  return absl::DataLossError("describes a group or a plan that cannot be");
}

bool RingReader::Sensible(const RunRecord& record) const {
  return Bucketable(static_cast<CollectiveKind>(record.kind)) &&
         ItemSize(static_cast<DType>(record.dtype)) > 0 && record.bytes > 0 &&
         record.bytes <= kMostBytes && Within(record.peak_bytes, kMostBytes) &&
         record.packed <= 1 && record.launches >= 1 &&
         (record.link == kNoLink || record.link < links_.size());
}

absl::Status RingReader::Read(std::vector<RunRecord>& into) {
  into.clear();
  uint64_t head = 0;
  if (!ReadAt(memory_, &head, sizeof(head), offsetof(RingHeader, head))) {
    return absl::DataLossError("lost its header");
  }
  // What was written before it is read after it.
  std::atomic_thread_fence(std::memory_order_acquire);
  RingHeader header;
  if (!ReadAt(memory_, &header, sizeof(header), 0)) return absl::DataLossError("lost its header");
  const uint64_t count = head - tail_;
  if (count > records_) {
    return absl::DataLossError(absl::StrCat(count, " new records in a ring of ", records_));
  }
  RETURN_IF_ERROR(ReadTables(header));
  if (header.dropped > seen_dropped_) {
    dropped_ += std::min(header.dropped - seen_dropped_, kMostDropped);
    seen_dropped_ = header.dropped;
  }
  if (count == 0) return absl::OkStatus();
  into.resize(count);
  const uint64_t at = tail_ % records_;
  const uint64_t straight = std::min<uint64_t>(count, records_ - at);
  if (!ReadAt(memory_, into.data(), straight * sizeof(RunRecord),
              sizeof(RingHeader) + at * sizeof(RunRecord)) ||
      (count > straight && !ReadAt(memory_, into.data() + straight,
                                   (count - straight) * sizeof(RunRecord), sizeof(RingHeader)))) {
    return absl::DataLossError("lost its records");
  }
  tail_ += count;
  std::atomic_thread_fence(std::memory_order_release);
  if (pwrite(memory_.get(), &tail_, sizeof(tail_), offsetof(RingHeader, tail)) != sizeof(tail_)) {
    return absl::DataLossError("cannot be written");
  }
  const auto good = std::remove_if(into.begin(), into.end(),
                                   [this](const RunRecord& record) { return !Sensible(record); });
  invalid_ += static_cast<uint64_t>(into.end() - good);
  into.erase(good, into.end());
  return absl::OkStatus();
}

}  // namespace bucketd::agent
