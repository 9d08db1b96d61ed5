// What keeps the order of a step besides its data edges.
#pragma once

#include <vector>

#include "absl/status/statusor.h"

#include "passes/ir/graph.h"

namespace bucketd {

struct Constraints {
  struct Edge {
    NodeId before, after;  // before < after
    friend bool operator==(const Edge&, const Edge&) = default;
  };
  // In-place ops keep their side of every other user of the storage; a collective uses its input
  // until its wait; random, effectful and host-synchronising ops stay in their order. Sorted by
  // `after`. Program order satisfies all of them.
  std::vector<Edge> edges;
  // One a collective: it reads or makes storage that an in-place op writes, or is itself kept in
  // order. Such a collective is never put into a bucket.
  std::vector<bool> pinned;
};

// O(nodes + edges) where tensors stand on few storages. RESOURCE_EXHAUSTED as StorageSets::Of, and
// where writes meet too many.
absl::StatusOr<Constraints> FindConstraints(const Graph& graph);

}  // namespace bucketd
