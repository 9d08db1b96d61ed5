// Runs a plan's step on this machine: its collectives for real, its compute as time that passes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "gpu_agent/run/replay_plan.h"
#include "gpu_agent/run/session.h"
#include "passes/io/chrome_trace.h"

namespace bucketd::agent {

struct ReplayResult {
  // Medians over the rounds. The whole of the slowest rank; of a bucket's collective from the last
  // rank's arrival on, of its copies the slowest rank's.
  int64_t total_ps = 0;
  std::vector<int64_t> round_ps;  // the whole, round by round
  std::vector<PartTimes> buckets;
  std::vector<MeasuredSpan> last_round;  // of this rank
};

// One round to warm up, then `rounds`. All ranks call it. Buckets start and end where the plan has
// them; in between the thread sleeps until an absolute time, so that sleeping late does not add up.
// REQUIRES: rounds >= 1.
absl::StatusOr<ReplayResult> Replay(Session& session, const ReplayPlan& plan, int rounds);

}  // namespace bucketd::agent
