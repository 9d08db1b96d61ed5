// What a process says of one executor's buckets to its node's agent: a record for each run.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "gpu_agent/exec/executor.h"
#include "gpu_agent/telemetry/writer.h"

namespace bucketd::agent {

// A process's ring, and what its records say of the whole process.
struct Telemetry {
  std::unique_ptr<RingWriter> ring;
  std::atomic<int64_t> peak_bytes{0};
};

// Not thread-safe. Telemetry outlives it.
class Reporting {
 public:
  // `plan` but for its arena and number of buckets; `links` and `predicted_ps` one a bucket.
  Reporting(Telemetry& telemetry, const Program& program, RingPlan plan,
            const std::vector<RingLink>& links, const std::vector<int64_t>& predicted_ps);

  // A run is over; the trainer stood in its wait for `exposed_ns`.
  void Ran(int32_t bucket, const BucketTimes& times, int64_t exposed_ns);

 private:
  Telemetry& telemetry_;
  std::vector<RunRecord> next_;  // of each bucket
};

}  // namespace bucketd::agent
