// Whether a new plan is worth changing to. A change of plan costs every rank a recompilation, so an
// old plan is kept unless the new one is faster by more than a threshold.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/pass/options.h"
#include "passes/plan/plan.h"

namespace bucketd {

// 1 %: within what costs are known to.
inline constexpr int64_t kDefaultReplanPpm = 10'000;

struct ReplanVerdict {
  bool replace = false;
  int64_t pinned_ps = 0;  // both under the costs of now
  int64_t fresh_ps = 0;
  int64_t gain_ppm = 0;  // of the pinned plan's time; negative: the new one is slower
};

// Simulates both plans under `costs`, the ones that `fresh` was made for. Ties keep the pinned
// plan. Integers throughout: whoever decides, decides alike. O(nodes + edges). FAILED_PRECONDITION
// if the pinned plan is not legal for this graph: then there is nothing to keep. REQUIRES: `fresh`
// is legal, 0 <= threshold_ppm.
absl::StatusOr<ReplanVerdict> JudgeReplan(const Graph& graph, const Plan& pinned, const Plan& fresh,
                                          const Costs& costs, int64_t threshold_ppm);

// Why the pinned plan may not stand in for `fresh`, which `options` made: it promises other
// numerics, or it takes more memory than the options' limit and `fresh` do. "": it may. REQUIRES:
// both are legal, MakePlan() made `fresh`.
std::string WhyNotPinned(const Graph& graph, const Costs& costs, const PlanOptions& options,
                         const Plan& pinned, const Plan& fresh);

// The plan with its times and memory under these costs, beside what `fresh` says of the step; what
// it said of itself under older costs is left out.
Plan UnderCostsOf(const Graph& graph, const Costs& costs, const Plan& fresh, Plan plan);

}  // namespace bucketd
