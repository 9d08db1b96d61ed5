// proto/GRAPH.md §2: from what one rank captured to what every rank of the mesh has.
#pragma once

#include <vector>

#include "absl/status/statusor.h"

#include "passes/ir/graph.h"

namespace bucketd {

struct NormalizedGraph {
  Graph graph;
  // Canonical id -> id in the raw graph; kNoNode for a node that was inserted and stands for
  // nothing here.
  std::vector<NodeId> raw_id;
};

// Steps 1, 3, 4 and 5; step 2 is done by whoever read the groups. Idempotent: a normalised graph
// comes back as it is.
absl::StatusOr<NormalizedGraph> Normalize(const Graph& raw);

}  // namespace bucketd
