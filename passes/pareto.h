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

// A plan, and the options with which MakePlan() makes it again: those given, with this point's
// memory limit and, seldom, another mode.
struct ParetoPoint {
  PlanOptions options;
  Plan plan;
};

inline constexpr int32_t kDefaultFrontPlans = 20;

// Plans that no other one dominates, by ascending peak memory and strictly descending step time; at
// least one. It plans for the least memory, program order's, the default limit, no limit, and for
// mode `auto` what the other modes' plans need; then for the limit in the middle of the gap where
// most time may be gained, until `most_plans` are made or nothing is left to gain. The limits in
// `options` are ignored. Errors as MakePlan's. Deterministic. REQUIRES: 8 <= most_plans.
absl::StatusOr<std::vector<ParetoPoint>> ParetoFront(const Graph& graph, const Costs& costs,
                                                     const PlanOptions& options,
                                                     int32_t most_plans = kDefaultFrontPlans);

}  // namespace bucketd
