#include "passes/pass/ancestry.h"

#include "passes/base/index.h"

namespace bucketd {

std::vector<NodeId> OnlyPlaceholders(const Graph& graph) {
  constexpr NodeId kMany = -2;
  std::vector<NodeId> only(Index(graph.size()), kNoNode);
  for (NodeId n = 0; n < graph.size(); ++n) {
    NodeId& mine = only[Index(n)];
    if (graph.kind(n) == NodeKind::kPlaceholder) {
      if (!graph.outputs(n).empty()) mine = n;
      continue;
    }
    for (const NodeId x : graph.inputs(n)) {
      const NodeId theirs = only[Index(x)];
      if (theirs == kNoNode || theirs == mine) continue;
      mine = mine == kNoNode ? theirs : kMany;
    }
  }
  return only;
}

std::vector<bool> UnaryTails(const Graph& graph) {
  std::vector<bool> unary(Index(graph.size()), true);
  for (NodeId n = graph.size() - 1; n >= 0; --n) {
    for (const NodeId user : graph.users(n)) {
      if (graph.kind(user) == NodeKind::kOutput) continue;
      if (graph.inputs(user).size() != 1 || !unary[Index(user)]) unary[Index(n)] = false;
    }
  }
  return unary;
}

}  // namespace bucketd
