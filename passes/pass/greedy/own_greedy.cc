#include <memory>
#include <vector>

#include "passes/base/status_macros.h"
#include "passes/cost/saturation.h"
#include "passes/pass/greedy/greedy_policy.h"
#include "passes/pass/schedule.h"

namespace bucketd {
namespace {

class OwnGreedy : public GreedyPolicy {
 public:
  explicit OwnGreedy(const PassContext& context)
      : context_(context),
        primary_(context.options.primary_group_only ? PrimaryGroup(context.graph, context.tags)
                                                    : GroupId{-1}) {}

  bool Wants(CollectiveId c) const override {
    return context_.tags[c].tag != Tag::kNone &&
           (primary_ < 0 || context_.graph.collective(c).group == primary_);
  }
  Direction DirectionOf(CollectiveId c) const override { return context_.directions[Index(c)]; }
  int32_t stages() const override { return 1; }
  int32_t StageOf(CollectiveId) const override { return 0; }
  int64_t AutoCap(CollectiveId c) const override { return AutoCapBytes(context_.costs, c); }
  bool caps_shrink() const override { return true; }
  void Adjust(GreedyRules&) const override {}

  absl::Status Order(PassContext& context, const Plan&, Plan& plan) const override {
    ASSIGN_OR_RETURN(const Scheduler scheduler,
                     Scheduler::Make(context, plan.buckets, context.launches));
    plan.order = scheduler.Order(std::vector<int32_t>(context.launches.size(), 0));
    return absl::OkStatus();
  }

 private:
  const PassContext& context_;
  const GroupId primary_;
};

}  // namespace

GroupId GroupTally::MostFrequent() const {
  GroupId best = -1;
  for (const GroupId group : order_) {
    if (best < 0 || count_[Index(group)] > count_[Index(best)]) best = group;
  }
  return best;
}

GroupId PrimaryGroup(const Graph& graph, const Tags& tags) {
  GroupTally gathers(graph), others(graph);
  const auto collectives = static_cast<CollectiveId>(graph.collectives().size());
  for (CollectiveId c = 0; c < collectives; ++c) {
    const Tag tag = tags[c].tag;
    if (tag == Tag::kNone) continue;
    (tag == Tag::kFsdpAllGather ? gathers : others).Meet(graph.collective(c).group);
  }
  return gathers.order().empty() ? others.MostFrequent() : gathers.MostFrequent();
}

std::unique_ptr<GreedyPolicy> MakeOwnGreedyPolicy(const PassContext& context, GreedyTraffic) {
  return std::make_unique<OwnGreedy>(context);
}

}  // namespace bucketd
