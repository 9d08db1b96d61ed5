// What a rank asks a server for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/planner_client.h"

#include "passes/io/fx_json.h"

namespace bucketd::client {

// One of tests/data/graphs.
absl::StatusOr<CapturedGraph> ReadGraph(const std::string& name);

// For a plan of that graph.
PlanQuery QueryFor(const std::string& name);

}  // namespace bucketd::client
