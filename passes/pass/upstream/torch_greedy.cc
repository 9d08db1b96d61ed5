#include "passes/pass/upstream/torch_greedy.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/cost/saturation.h"
#include "passes/ir/ops.h"
#include "passes/pass/schedule.h"
#include "passes/pass/stable_sort.h"
#include "passes/pass/tags.h"

namespace bucketd::upstream {
namespace {

constexpr CollectiveKind kStages[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                      CollectiveKind::kAllReduce};
// Floor in MB of 2^20 bytes.
struct Link {
  double gb_per_s, hop_us, base_us;
  int64_t floor_mb;
};
constexpr int32_t kRanksInside = 8;
constexpr Link kInside = {22, 45, 10, 0}, kAcross = {11, 14, 30, 75};

CollectiveId Count(const Graph& graph) {
  return static_cast<CollectiveId>(graph.collectives().size());
}

bool WritesIntoGiven(const Graph& graph, const Collective& collective) {
  return absl::EndsWith(BaseName(graph.op(collective.start)), "_out");
}

class TorchGreedy : public GreedyPolicy {
 public:
  TorchGreedy(const PassContext& context, GreedyTraffic traffic)
      : graph_(context.graph),
        found_(FindTraffic(context.graph, context.options.primary_group_only)),
        by_group_(traffic == GreedyTraffic::kFsdpGroups) {}

  bool Wants(CollectiveId c) const override {
    if (by_group_ && found_.groups.empty()) return false;
    const Collective& collective = graph_.collective(c);
    return found_.gather[Index(c)] || found_.scatter[Index(c)] ||
           (ReducesWhole(collective.kind) &&
            (!by_group_ || absl::c_linear_search(found_.groups, collective.group)));
  }
  Direction DirectionOf(CollectiveId) const override { return Direction::kNone; }
  int32_t stages() const override { return static_cast<int32_t>(std::size(kStages)); }
  int32_t StageOf(CollectiveId c) const override {
    return static_cast<int32_t>(absl::c_find(kStages, graph_.collective(c).kind) -
                                std::begin(kStages));
  }
  // Without a size torch takes the most it ever does. Without a GPU in sight it reckons with
  // Ampere, eight to a node.
  int64_t AutoCap(CollectiveId) const override {
    return found_.group_size > 0 ? TorchAutoCapBytes(found_.group_size) : kMaxAutoCapBytes;
  }
  bool caps_shrink() const override { return false; }
  void Adjust(GreedyRules& rules) const override {
    rules.adjacent_only = rules.max_topo_span == kNoLimit;
    rules.drop_dependent = true;
  }

  // Each new bucket behind its last member; then all is sorted.
  absl::Status Order(PassContext& context, const Plan& before, Plan& plan) const override {
    const ItemGraph items(graph_, context.constraints, plan.buckets);
    std::vector<BucketId> behind(Index(graph_.size()), -1);
    for (size_t b = before.buckets.size(); b < plan.buckets.size(); ++b) {
      behind[Index(plan.buckets[b].members.back())] = static_cast<BucketId>(b);
    }
    std::vector<int32_t> list;
    for (const Step& step : before.order) {
      if (items.exists(items.item(step))) list.push_back(items.item(step));
      if (step.kind != Step::Kind::kNode || behind[Index(step.id)] < 0) continue;
      list.push_back(items.start_item(behind[Index(step.id)]));
      list.push_back(items.wait_item(behind[Index(step.id)]));
    }
    const std::optional<std::vector<int32_t>> sorted = StableTopologicalSort(list, items);
    if (!sorted.has_value()) {
      return absl::FailedPreconditionError(
          "buckets of different keys depend on one another, so no order exists; upstream does not "
          "look for that: plan without it");
    }
    plan.order = items.steps(*sorted);
    context.launches.clear();
    context.units.clear();
    return absl::OkStatus();
  }

 private:
  const Graph& graph_;
  const Traffic found_;
  const bool by_group_;
};

}  // namespace

std::unique_ptr<GreedyPolicy> MakeTorchGreedy(const PassContext& context, GreedyTraffic traffic) {
  return std::make_unique<TorchGreedy>(context, traffic);
}

int64_t TorchSaturationBytes(int32_t ranks) {
  const Link& link = ranks > kRanksInside ? kAcross : kInside;
  constexpr int64_t kNine = 9;  // 0.9 / (1 - 0.9)
  const double us = link.base_us + (ranks - 1) * link.hop_us;
  const auto bytes = static_cast<int64_t>(kNine * us * link.gb_per_s * 1e3);
  return std::max(bytes, link.floor_mb << 20);
}

int64_t TorchAutoCapBytes(int32_t ranks) { return ClampAutoCap(TorchSaturationBytes(ranks)); }

Traffic FindTraffic(const Graph& graph, bool primary_only) {
  Traffic traffic;
  traffic.gather.resize(graph.collectives().size());
  traffic.scatter.resize(graph.collectives().size());
  const std::vector<NodeId> only = OnlyPlaceholders(graph);
  const std::vector<bool> unary = UnaryTails(graph);
  GroupTally tally(graph);
  for (const bool into_given : {false, true}) {
    for (CollectiveId c = 0; c < Count(graph); ++c) {
      const Collective& collective = graph.collective(c);
      if (!Gathers(collective.kind) || collective.symbolic || only[Index(collective.start)] < 0 ||
          WritesIntoGiven(graph, collective) != into_given) {
        continue;
      }
      traffic.gather[Index(c)] = true;
      tally.Meet(collective.group);
      if (traffic.group_size == 0) traffic.group_size = graph.group(collective).size;
    }
  }
  for (CollectiveId c = 0; c < Count(graph); ++c) {
    const Collective& collective = graph.collective(c);
    traffic.scatter[Index(c)] =
        Scatters(collective.kind) && !collective.symbolic && collective.wait != kNoNode &&
        !graph.users(collective.wait).empty() && unary[Index(collective.wait)];
  }
  traffic.groups = tally.order();
  if (primary_only && !traffic.groups.empty()) traffic.groups = {tally.MostFrequent()};
  return traffic;
}

}  // namespace bucketd::upstream
