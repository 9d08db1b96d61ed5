// Whether a job's new generation should get a new plan: passes/replan.h's judgement on what a store
// holds.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/ir/graph.h"
#include "passes/replan.h"
#include "server/plans/plan_request.h"

namespace bucketd {

// JudgeReplan for serialised plans and a request with the profile of now. For a worker.
absl::StatusOr<ReplanVerdict> JudgeReplan(const Graph& graph, absl::string_view pinned,
                                          absl::string_view fresh, const PlanRequest& request,
                                          int64_t threshold_ppm);

}  // namespace bucketd
