#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "passes/base/collectives.h"
#include "passes/cost/saturation.h"
#include "passes/pass/greedy/greedy_plan.h"
#include "passes/pass/numerics.h"
#include "passes/pass/primary_group.h"

namespace bucketd {
namespace {

size_t Index(int32_t i) { return static_cast<size_t>(i); }

constexpr CollectiveKind kStages[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                      CollectiveKind::kAllReduce};

// One a node: where it stands in the order, or -1.
std::vector<int32_t> Positions(const Graph& graph, const Plan& plan) {
  std::vector<int32_t> at(Index(graph.size()), -1);
  for (size_t i = 0; i < plan.order.size(); ++i) {
    if (plan.order[i].kind != Step::Kind::kNode) continue;
    at[Index(plan.order[i].id)] = static_cast<int32_t>(i);
  }
  return at;
}

bool CanBeMember(const PassContext& context, CollectiveId c) {
  const Graph& graph = context.graph;
  const Collective& collective = graph.collective(c);
  return collective.wait != kNoNode && graph.users(collective.start).size() == 1 &&
         graph.inputs(collective.start).size() == 1 &&
         graph.outputs(collective.start).size() == 1 && !context.constraints.pinned[Index(c)] &&
         MayMerge(collective.kind, context.options);
}

std::vector<bool> ByTags(const PassContext& context) {
  std::vector<bool> wanted(context.tags.of.size());
  const GroupId primary =
      context.options.primary_group_only ? PrimaryGroup(context.graph, context.tags) : GroupId{-1};
  for (size_t c = 0; c < wanted.size(); ++c) {
    const GroupId group = context.graph.collectives()[c].group;
    wanted[c] = context.tags.of[c].tag != Tag::kNone && (primary < 0 || group == primary);
  }
  return wanted;
}

std::vector<bool> AsUpstream(const PassContext& context, const UpstreamTraffic& found,
                             GreedyTraffic traffic) {
  std::vector<bool> wanted(context.tags.of.size());
  const bool by_group = traffic == GreedyTraffic::kFsdpGroups;
  if (by_group && found.groups.empty()) return wanted;
  for (size_t c = 0; c < wanted.size(); ++c) {
    const Collective& collective = context.graph.collectives()[c];
    const bool known =
        std::find(found.groups.begin(), found.groups.end(), collective.group) != found.groups.end();
    wanted[c] = found.gather[c] || found.scatter[c] ||
                (ReducesWhole(collective.kind) && (known || !by_group));
  }
  return wanted;
}

// Caps of one key.
std::vector<int64_t> Caps(const PassContext& context, const GreedyKey& key,
                          int64_t upstream_auto_cap) {
  const PlanOptions& options = context.options;
  if (options.bucket_cap_bytes.empty()) {
    return {options.upstream ? upstream_auto_cap : AutoCapBytes(context.costs, key.first)};
  }
  std::vector<int64_t> caps;
  for (const int64_t bytes : options.bucket_cap_bytes) {
    caps.push_back(bytes == kNoLimit ? kNoCap : bytes);
  }
  return caps;
}

class Keys {
 public:
  int32_t Of(const PassContext& context, CollectiveId c) {
    const Collective& collective = context.graph.collective(c);
    const Direction direction =
        context.options.upstream ? Direction::kNone : context.directions[Index(c)];
    const BucketKey key = BucketKey::Of(collective);
    const auto [it, added] =
        at_.emplace(std::make_pair(key, direction), static_cast<int32_t>(all_.size()));
    if (added) all_.push_back({key, direction, c, 0, {}});
    all_[Index(it->second)].bytes += collective.bytes;
    return it->second;
  }
  std::vector<GreedyKey> Take() { return std::move(all_); }

 private:
  absl::flat_hash_map<std::pair<BucketKey, Direction>, int32_t> at_;
  std::vector<GreedyKey> all_;
};

}  // namespace

GreedyInput CollectGreedyInput(const PassContext& context, const Plan& plan, const ItemGraph& items,
                               GreedyTraffic traffic) {
  const bool upstream = context.options.upstream;
  int64_t upstream_cap = 0;
  std::vector<bool> wanted;
  if (upstream) {
    const UpstreamTraffic found =
        FindUpstreamTraffic(context.graph, context.options.primary_group_only);
    wanted = AsUpstream(context, found, traffic);
    // Without a size torch takes the most it ever does. Without a GPU in sight it reckons with
    // Ampere, eight to a node.
    upstream_cap = found.group_size > 0 ? TorchAutoCapBytes(found.group_size) : kMaxAutoCapBytes;
  } else {
    wanted = ByTags(context);
  }
  const std::vector<int32_t> at = Positions(context.graph, plan);
  std::vector<std::pair<int32_t, CollectiveId>> by_wait;
  for (CollectiveId c = 0; c < static_cast<CollectiveId>(wanted.size()); ++c) {
    const Collective& collective = context.graph.collective(c);
    if (!wanted[Index(c)] || !CanBeMember(context, c) || at[Index(collective.start)] < 0) continue;
    by_wait.emplace_back(at[Index(collective.wait)], c);
  }
  std::sort(by_wait.begin(), by_wait.end());
  GreedyInput input;
  input.auto_caps = context.options.bucket_cap_bytes.empty();
  input.stages.resize(upstream ? std::size(kStages) : 1);
  Keys keys;
  for (const auto& [wait, c] : by_wait) {
    const Collective& collective = context.graph.collective(c);
    const size_t stage = !upstream
                             ? 0
                             : static_cast<size_t>(std::find(std::begin(kStages), std::end(kStages),
                                                             collective.kind) -
                                                   std::begin(kStages));
    const NodeId start = collective.start;
    input.stages[stage].push_back({c, keys.Of(context, c), at[Index(start)], collective.bytes,
                                   items.item({Step::Kind::kNode, start}),
                                   items.item({Step::Kind::kNode, collective.wait})});
  }
  input.keys = keys.Take();
  for (GreedyKey& key : input.keys) key.caps = Caps(context, key, upstream_cap);
  return input;
}

}  // namespace bucketd
