// The front of step time against peak memory: what more memory buys.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/pass/options.h"
#include "passes/plan/plan.h"

namespace bucketd {

// A plan, and the options that made it: those that were given with the memory limit of this point,
// and seldom with another mode, so that MakePlan() makes it again.
struct ParetoPoint {
  PlanOptions options;
  Plan plan;
};

inline constexpr int32_t kDefaultFrontPlans = 20;

// Points by ascending peak memory and strictly descending step time; at least one. Plans for the
// least memory, for program order's, for the default limit and for no limit at all, and for what
// the other modes' plans need where mode `auto` asks; then again and again for the limit in the
// middle of where most time may hide, until `most_plans` are made or nothing is left to gain: what
// no other plan dominates. Its limits replace those in `options`. Errors as MakePlan's.
// Deterministic. REQUIRES: 8 <= most_plans.
absl::StatusOr<std::vector<ParetoPoint>> ParetoFront(const Graph& graph, const Costs& costs,
                                                     const PlanOptions& options,
                                                     int32_t most_plans = kDefaultFrontPlans);

}  // namespace bucketd
