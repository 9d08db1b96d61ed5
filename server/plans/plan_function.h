// What a worker does for one plan: costs, planner, verification, bytes.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

#include "passes/ir/graph.h"

namespace bucketd {

struct PlanRequest;

// Returns a serialised v1::Plan; errors carry a reason. Called on worker threads, several at a
// time.
using PlanFunction =
    std::function<absl::StatusOr<std::string>(const Graph& graph, const PlanRequest& request)>;

absl::StatusOr<std::string> ComputePlan(const Graph& graph, const PlanRequest& request);

}  // namespace bucketd
