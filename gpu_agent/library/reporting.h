// What a process says of one executor's buckets to its node's agent: a record for each run.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "gpu_agent/exec/executor.h"
#include "gpu_agent/telemetry/writer.h"

namespace bucketd::agent {

// Not thread-safe, but for Took. The process's ring outlives it.
class Reporting {
 public:
  // `plan` but for its arena; `links` and `predicted_ps` one a bucket.
  Reporting(RingWriter& ring, const Program& program, RingPlan plan,
            const std::vector<RingLink>& links, const std::vector<int64_t>& predicted_ps);
  ~Reporting() { ring_.EndPlan(plan_, arena_bytes_); }
  Reporting(const Reporting&) = delete;
  Reporting& operator=(const Reporting&) = delete;

  // Whether the ring had room for the plan and for all links.
  bool whole() const { return whole_; }
  // A run is over; the trainer stood in its wait for `exposed_ns`.
  void Ran(int32_t bucket, const BucketTimes& times, int64_t exposed_ns);
  // So many runs of which nobody has seen the end.
  void Lost(uint64_t runs) { ring_.Lose(runs); }
  // The same of one that others follow: an agent knows by its step which run of another rank a
  // record is of.
  void Skip(int32_t bucket) {
    ++next_[static_cast<size_t>(bucket)].step;
    Lost(1);
  }
  // The most memory of the plan's runs so far.
  void Took(int64_t peak_bytes) { peak_bytes_.store(peak_bytes, std::memory_order_relaxed); }

 private:
  RingWriter& ring_;
  const uint64_t plan_;
  const int64_t arena_bytes_;
  bool whole_ = true;
  std::vector<RunRecord> next_;  // of each bucket
  std::atomic<int64_t> peak_bytes_{0};
};

}  // namespace bucketd::agent
