// Graph in, verified plan out. The one entry of the passes library: the server's workers and
// bucketctl call it.
#pragma once

#include "absl/status/statusor.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/pass/options.h"
#include "passes/pass/pipeline.h"
#include "passes/plan/plan.h"

namespace bucketd {

// Part of every plan's key: changes whenever a plan could. planner_version.cc has it alone, so that
// tests can link a server of the next one.
extern const char kPlannerVersion[];

// INVALID_ARGUMENT: options. FAILED_PRECONDITION: the mode cannot plan this graph; the text says
// why and what to do. INTERNAL: a pass made an illegal plan. Deterministic: the same graph, costs
// and options give the same plan on every machine. Thread-safe. CANCELLED: soon after
// IsCancelled() (base/cancellation.h) is true. `after` may be null.
absl::StatusOr<Plan> MakePlan(const Graph& graph, const Costs& costs, const PlanOptions& options,
                              const AfterPass& after = nullptr);

// Fills the prediction and the times of the buckets. REQUIRES: the plan is legal for the graph.
void Predict(const Graph& graph, const Costs& costs, Plan& plan);

}  // namespace bucketd
