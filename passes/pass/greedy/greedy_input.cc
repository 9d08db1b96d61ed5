#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "passes/base/index.h"
#include "passes/pass/greedy/greedy_plan.h"
#include "passes/pass/numerics.h"
#include "passes/pass/plan_launch.h"

namespace bucketd {
namespace {

// Caps of one key.
std::vector<int64_t> Caps(const PlanOptions& options, const GreedyPolicy& policy,
                          const GreedyKey& key) {
  if (options.bucket_cap_bytes.empty()) return {policy.AutoCap(key.first)};
  return options.bucket_cap_bytes;
}

class Keys {
 public:
  int32_t Of(const PassContext& context, CollectiveId c, Direction direction) {
    const Collective& collective = context.graph.collective(c);
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

GreedyInput CollectGreedyInput(const PassContext& context, const GreedyPolicy& policy,
                               const Plan& plan, const ItemGraph& items) {
  const std::vector<int32_t> at = PlacesOf(context.graph, plan.buckets, plan.order);
  std::vector<std::pair<int32_t, CollectiveId>> by_wait;
  for (CollectiveId c = 0; c < static_cast<CollectiveId>(context.graph.collectives().size()); ++c) {
    const Collective& collective = context.graph.collective(c);
    const bool is_free = items.exists(collective.start);  // in no bucket yet
    if (!is_free || !policy.Wants(c) || !MayJoinBucket(context, c)) continue;
    by_wait.emplace_back(at[Index(collective.wait)], c);
  }
  std::sort(by_wait.begin(), by_wait.end());
  GreedyInput input;
  input.auto_caps = context.options.bucket_cap_bytes.empty();
  input.stages.resize(Index(policy.stages()));
  Keys keys;
  for (const auto& [wait, c] : by_wait) {
    const Collective& collective = context.graph.collective(c);
    input.stages[Index(policy.StageOf(c))].push_back({c, keys.Of(context, c, policy.DirectionOf(c)),
                                                      at[Index(collective.start)], collective.bytes,
                                                      collective.start, collective.wait});
  }
  input.keys = keys.Take();
  for (GreedyKey& key : input.keys) key.caps = Caps(context.options, policy, key);
  return input;
}

}  // namespace bucketd
