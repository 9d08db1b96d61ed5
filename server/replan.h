// Whether a job's new generation should get a new plan. A change of plan costs every rank a
// recompilation, so the plan of the last generation is kept unless the new one is faster by more
// than a threshold.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "server/plan_request.h"

namespace bucketd {

struct ReplanVerdict {
  bool replace = false;
  int64_t pinned_ps = 0;  // both under the costs of now
  int64_t fresh_ps = 0;
  int64_t gain_ppm = 0;  // of the pinned plan's time; negative: the new one is slower
};

// Simulates both plans under `costs`, the ones that `fresh` was made for. Ties keep the pinned
// plan. Integers throughout: every replica decides alike. O(nodes + edges). FAILED_PRECONDITION if
// the pinned plan is not legal for this graph: then there is nothing to keep. REQUIRES: `fresh` is
// legal, 0 <= threshold_ppm.
absl::StatusOr<ReplanVerdict> JudgeReplan(const Graph& graph, const Plan& pinned, const Plan& fresh,
                                          const Costs& costs, int64_t threshold_ppm);

// The same for serialised plans and a request with the profile of now. For a worker.
absl::StatusOr<ReplanVerdict> JudgeReplan(const Graph& graph, absl::string_view pinned,
                                          absl::string_view fresh, const PlanRequest& request,
                                          int64_t threshold_ppm);

}  // namespace bucketd
