// What a worker does for one plan: costs, planner, verification, bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

#include "passes/ir/graph.h"
#include "passes/pass/options.h"

namespace bucketd {

struct PlanRequest;

// Returns a serialised v1::Plan; errors carry a reason. Called on worker threads, several at a
// time.
using PlanFunction =
    std::function<absl::StatusOr<std::string>(const Graph& graph, const PlanRequest& request)>;

// About how long that takes on one core, for weighing requests against each other.
int64_t EstimatedMillis(const Graph& graph, const PlanOptions& options);

absl::StatusOr<std::string> ComputePlan(const Graph& graph, const PlanRequest& request);

}  // namespace bucketd
