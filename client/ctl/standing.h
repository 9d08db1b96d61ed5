// How good a plan is: against program order, the best other mode and the lower bound.
#pragma once

#include <string>

#include "client/cli/json.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/gap.h"
#include "passes/sim/sharp_bound.h"

namespace bucketd::ctl {

struct Standing {
  int64_t total_ps = 0, program_order_ps = 0;
  std::string best_mode;     // the best other mode within the memory limit, as mode auto found it
  int64_t best_mode_ps = 0;  // 0: the plan does not say
  SharpBound bound;
  Gap gap;
};

// REQUIRES: VerifyPlan(graph, plan).ok(), its prediction is of these costs.
Standing StandingOf(const Graph& graph, const Plan& plan, const Costs& costs);

// A short block: what was gained, how far the bound is, and where the rest goes, largest first.
std::string StandingText(const Standing& standing);
// The same as an object: "gain", "sharp_bound_us", "over_sharp_bound", "gap".
Json StandingJson(const Standing& standing);

}  // namespace bucketd::ctl
