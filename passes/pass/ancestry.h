// What a node is computed from, and what follows it, as far as parameters and gradients go.
#pragma once

#include <vector>

#include "passes/ir/graph.h"

namespace bucketd {

// One a node: the only placeholder with tensors that it is computed from; kNoNode: there is none;
// below that: there are several.
std::vector<NodeId> OnlyPlaceholders(const Graph& graph);

// One a node: all that follows reads one node only, or is the output.
std::vector<bool> UnaryTails(const Graph& graph);

}  // namespace bucketd
