// Where two graphs begin to differ, for people who wonder why they have two digests.
#pragma once

#include <string>

#include "passes/ir/graph.h"

namespace bucketd {

struct GraphDifference {
  NodeId node = kNoNode;  // in both graphs; kNoNode: they are equal in all that a digest covers
  std::string field;  // "op", "inputs", "output 0", "mesh dimension", ...; "nodes": one is longer
  std::string first, second;
};

// The first node, and its first field in the order of the canonical encoding (proto/GRAPH.md §4),
// that differs. REQUIRES: both normalised. O(nodes + edges). Thread-safe.
GraphDifference FirstDifference(const Graph& a, const Graph& b);

}  // namespace bucketd
