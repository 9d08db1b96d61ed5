// The two plans whose replies are measured.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace bucketd {

struct BenchRequest {
  std::string name;        // of graph and mode, for people
  std::string request;     // a serialised GetPlanRequest without the graph
  std::string with_graph;  // and with it
};

// A captured graph, `repeat` times in a row as one (a step of so many microbatches: a longer plan
// of the same kind). Other tenants have other plans.
absl::StatusOr<BenchRequest> MakeBenchRequest(const std::string& graph_file, int repeat,
                                              const std::string& mode, const std::string& tenant);

}  // namespace bucketd
