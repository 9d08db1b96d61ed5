#include "passes/plan/raw_ids.h"

#include <utility>
#include <vector>

namespace bucketd {
namespace {

void MapIds(const std::vector<NodeId>& raw_id, std::vector<NodeId>& ids) {
  std::vector<NodeId> mapped;
  for (const NodeId id : ids) {
    const NodeId raw = raw_id[static_cast<size_t>(id)];
    if (raw != kNoNode) mapped.push_back(raw);
  }
  ids = std::move(mapped);
}

}  // namespace

void ToRawIds(const Graph& raw, const NormalizedGraph& normalized, Plan& plan) {
  const std::vector<NodeId>& raw_id = normalized.raw_id;
  std::vector<bool> is_known(static_cast<size_t>(raw.size()), false);
  for (const NodeId id : raw_id) {
    if (id != kNoNode) is_known[static_cast<size_t>(id)] = true;
  }
  std::vector<Step> order;
  order.reserve(plan.order.size());
  NodeId next = 0;
  const auto insert_dropped = [&](NodeId end) {
    for (; next < end; ++next) {
      if (!is_known[static_cast<size_t>(next)]) order.push_back({Step::Kind::kNode, next});
    }
  };
  for (Step step : plan.order) {
    if (step.kind == Step::Kind::kNode) {
      step.id = raw_id[static_cast<size_t>(step.id)];
      if (step.id == kNoNode) continue;
    }
    // Each stands where it stood among the placeholders, which come first.
    const bool is_input =
        step.kind == Step::Kind::kNode && raw.kind(step.id) == NodeKind::kPlaceholder;
    insert_dropped(is_input ? step.id : raw.size());
    order.push_back(step);
  }
  plan.order = std::move(order);
  plan.node_count = raw.size();
  for (Bucket& bucket : plan.buckets) {
    MapIds(raw_id, bucket.members);
    LayOut(raw, bucket);  // shards that are padded elsewhere are shorter here
  }
  for (Diagnostic& diagnostic : plan.diagnostics) MapIds(raw_id, diagnostic.nodes);
  for (NodeId* at : {&plan.prediction.peak_at, &plan.program_order.peak_at}) {
    if (*at != kNoNode) *at = raw_id[static_cast<size_t>(*at)];
  }
}

}  // namespace bucketd
