// Which collectives move parameters and their gradients, and whose.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

#include "passes/base/types.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd {

struct CollectiveTag {
  Tag tag = Tag::kNone;
  absl::string_view parameter;  // FQN, in the graph's strings; "" if it has none
};

struct Tags {
  std::vector<CollectiveTag> of;  // one a collective
  bool derived = false;           // from structure: the graph brought none
  const CollectiveTag& operator[](CollectiveId c) const { return of[static_cast<size_t>(c)]; }
};

// What a node is computed from, and what follows it, as far as parameters and gradients go.
//
// One a node: the only placeholder with tensors that it is computed from; kNoNode: there is none;
// below that: there are several.
std::vector<NodeId> OnlyPlaceholders(const Graph& graph);

// One a node: all that follows reads one node only, or is the output.
std::vector<bool> UnaryTails(const Graph& graph);

// From structure alone. All-gather: all that it is computed from goes back to exactly one
// placeholder, a parameter (any placeholder where no roles are known). Reduce-scatter and
// all-reduce: from the wait, only nodes of one input follow until the outputs, and a parameter's
// gradient is among these (the lowest slot names it). An all-reduce on one chain with a tagged
// reduce-scatter is HSDP's. The start's only user must be the wait. O(nodes + edges).
Tags DeriveTags(const Graph& graph);

// The graph's own tags if it brought any, else derived ones. A tag that does not fit its
// collective is left out and named in `diagnostics`.
Tags ResolveTags(const Graph& graph, std::vector<Diagnostic>& diagnostics);

// Forward or backward, one a collective: as the graph says; where it does not, structurally (on a
// joint graph, what stands after everything that the forward outputs need is backward).
std::vector<Direction> CollectiveDirections(const Graph& graph);

// The last node that the forward outputs need; kNoNode in a backward graph, behind the last node in
// a forward one. O(output slots).
NodeId LastForwardNode(const Graph& graph);
// As the graph says, else by that boundary.
Direction DirectionOf(const Graph& graph, NodeId n, NodeId last_forward);

}  // namespace bucketd
