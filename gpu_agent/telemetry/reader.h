// An agent's side of one ring. Whatever the other process writes, or does to the memory, costs the
// agent one descriptor and a page or two, and a bounded number of bytes read at each call: nothing
// is mapped, so that nothing can fault, and what does not hold together ends the ring.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/comm/socket.h"
#include "gpu_agent/telemetry/ring_layout.h"

namespace bucketd::agent {

// One thread uses it.
class RingReader {
 public:
  // FAILED_PRECONDITION where it is no ring of this version: not a memfd that keeps its size, other
  // sizes or counts than can be, a job's name that is not printable ASCII. `memory` stays then.
  static absl::StatusOr<RingReader> Open(Fd& memory);

  // Of the records that have come since, those that make sense, in order; at most as many as the
  // ring has room for. DATA_LOSS: the writer's count cannot be, and the ring is over.
  absl::Status Read(std::vector<RunRecord>& into);

  const std::string& job() const { return job_; }
  // As of the last Read.
  const std::vector<RingLink>& links() const { return links_; }
  const std::vector<RingPlan>& plans() const { return plans_; }
  // Since Open: records that were lost. Of those before it none, unless nobody can have counted
  // them: the ring was never read, nor full.
  uint64_t dropped() const { return dropped_; }
  // Since Open: those that made no sense.
  uint64_t invalid() const { return invalid_; }

 private:
  RingReader() = default;
  absl::Status ReadTables(const RingHeader& header);
  bool Sensible(const RunRecord& record) const;

  Fd memory_;
  uint32_t records_ = 0;
  uint64_t tail_ = 0;
  std::string job_;
  std::vector<RingLink> links_;
  std::vector<RingPlan> plans_;
  uint64_t seen_dropped_ = 0;  // by the writer's count
  uint64_t dropped_ = 0, invalid_ = 0;
};

}  // namespace bucketd::agent
