// What a replay runs: a plan and its graph as buckets, gaps of compute between them, and what the
// simulator says of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "gpu_agent/exec/plan_spec.h"
#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/simulator.h"

namespace bucketd::agent {

struct ReplayStep {
  enum class Kind : uint8_t { kCompute, kStart, kWait };
  Kind kind = Kind::kCompute;
  int64_t compute_ps = 0;  // with the slowdown that the prediction has it suffer
  int32_t bucket = -1;
};

struct PartTimes {
  int64_t copy_in_ps = 0, wire_ps = 0, copy_out_ps = 0;
};

struct ReplayPlan {
  Graph graph;
  Costs costs;
  Plan plan;
  // The plan's buckets, then a bucket of one for each collective that is in none; such a bucket is
  // "grouped": it works where its tensors are.
  PlanSpec spec;
  std::vector<ReplayStep> steps;
  std::vector<PartTimes> predicted;  // one a bucket of `spec`
  int64_t predicted_total_ps = 0;
};

// NOT_FOUND: no such file or profile. INVALID_ARGUMENT or FAILED_PRECONDITION: a plan that is not
// legal for the graph or was made for another one. UNIMPLEMENTED names a collective of a kind that
// no communicator runs.
absl::StatusOr<ReplayPlan> LoadReplayPlan(const std::string& plan_path,
                                          const std::string& graph_path,
                                          const std::string& profile);

}  // namespace bucketd::agent
