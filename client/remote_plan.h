// A captured graph planned by a server: what PlannerClient does for bytes, for core types.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "client/planner_client.h"

#include "passes/io/fx_json.h"
#include "passes/pass/options.h"
#include "passes/plan/plan.h"

namespace bucketd::client {

// A plan for no job, checked against the graph; it speaks the ids of the graph as it was captured.
// Predictions lack what the wire does not carry: busiest_group_ps and peak_at. `cost_profile` is
// one of the server's; "": its default. Costs that the capture states stay here: the server takes
// its own. INTERNAL if the plan is not a legal one for the graph; else errors are
// PlannerClient::GetPlan's. Linear in nodes, beside the server's time.
absl::StatusOr<Plan> PlanCaptured(PlannerClient& planner, const CapturedGraph& captured,
                                  const PlanOptions& options, const std::string& cost_profile,
                                  std::chrono::milliseconds deadline);

}  // namespace bucketd::client
