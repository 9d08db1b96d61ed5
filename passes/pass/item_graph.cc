#include <cstddef>

#include "passes/base/index.h"
#include "passes/pass/schedule.h"

namespace bucketd {
// Calls f(before, after) for every pair that an order must keep; a pair may come more than once.
template <typename F>
void ItemGraph::ForEdges(const Graph& graph, const Constraints& constraints, F f) const {
  for (NodeId n = 0; n < graph.size(); ++n) {
    const int32_t item = item_of_[Index(n)];
    for (const NodeId x : graph.inputs(n)) {
      if (item_of_[Index(x)] != item) f(item_of_[Index(x)], item);
    }
  }
  for (const Constraints::Edge& edge : constraints.edges) {
    const int32_t before = item_of_[Index(edge.before)], after = item_of_[Index(edge.after)];
    if (before != after) f(before, after);
  }
}

ItemGraph::ItemGraph(const Graph& graph, const Constraints& constraints,
                     absl::Span<const Bucket> buckets)
    : nodes_(graph.size()) {
  const size_t items = Index(nodes_) + 2 * buckets.size();
  exists_.assign(items, true);
  item_of_.resize(Index(nodes_));
  for (NodeId n = 0; n < nodes_; ++n) item_of_[Index(n)] = n;
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (const NodeId member : buckets[b].members) {
      const NodeId wait = graph.collective(graph.collective_of(member)).wait;
      item_of_[Index(member)] = start_item(static_cast<BucketId>(b));
      item_of_[Index(wait)] = wait_item(static_cast<BucketId>(b));
      exists_[Index(member)] = exists_[Index(wait)] = false;
    }
  }
  const auto count = static_cast<int32_t>(items);
  before_ = MakeCsr(count, [&](auto add) {
    ForEdges(graph, constraints, [&](int32_t from, int32_t to) { add(to, from); });
  });
  after_ = MakeCsr(count, [&](auto add) { ForEdges(graph, constraints, add); });
}

Step ItemGraph::step(int32_t item) const {
  if (item < nodes_) return {Step::Kind::kNode, item};
  const int32_t token = item - nodes_;
  return {token % 2 == 0 ? Step::Kind::kStart : Step::Kind::kWait, token / 2};
}

int32_t ItemGraph::item(const Step& step) const {
  if (step.kind == Step::Kind::kNode) return step.id;
  return step.kind == Step::Kind::kStart ? start_item(step.id) : wait_item(step.id);
}

std::vector<Step> ItemGraph::steps(absl::Span<const int32_t> items) const {
  std::vector<Step> steps;
  steps.reserve(items.size());
  for (const int32_t item : items) steps.push_back(step(item));
  return steps;
}

}  // namespace bucketd
