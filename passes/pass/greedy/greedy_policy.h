// What may be decided otherwise in greedy bucketing: which collectives, in which lists, under which
// caps, and the order that follows. passes/pass/upstream decides as torch 2.13 does.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "passes/base/index.h"
#include "passes/pass/greedy/greedy.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd {

enum class GreedyTraffic : uint8_t {
  kAny,
  kFsdpGroups,  // before a scheduler
};

// Of one run of one pass. REQUIRES: tag-collectives has run; the context outlives it.
class GreedyPolicy {
 public:
  virtual ~GreedyPolicy() = default;

  virtual bool Wants(CollectiveId c) const = 0;
  // What only shares a bucket with its like.
  virtual Direction DirectionOf(CollectiveId c) const = 0;
  // Lists of candidates are worked off one after the other; c stands in list StageOf(c).
  virtual int32_t stages() const = 0;
  virtual int32_t StageOf(CollectiveId c) const = 0;
  // Without a cap from the caller: of the key that c is the first of.
  virtual int64_t AutoCap(CollectiveId c) const = 0;
  // Whether automatic caps shrink while memory is above its limit.
  virtual bool caps_shrink() const = 0;
  virtual void Adjust(GreedyRules& rules) const = 0;
  // Writes plan.order. REQUIRES: the plan is `before` with more buckets, context.launches and units
  // say which. Takes out launches that nothing may move later. FAILED_PRECONDITION: no order
  // exists.
  virtual absl::Status Order(PassContext& context, const Plan& before, Plan& plan) const = 0;
};

// How often each group was met, and which came first.
class GroupTally {
 public:
  explicit GroupTally(const Graph& graph) : count_(graph.groups().size()) {}
  void Meet(GroupId group) {
    if (count_[Index(group)]++ == 0) order_.push_back(group);
  }
  const std::vector<GroupId>& order() const { return order_; }
  GroupId MostFrequent() const;  // the first on a tie; -1: none was met

 private:
  std::vector<int32_t> count_;
  std::vector<GroupId> order_;
};

// The group with most tagged all-gathers; where there are none, with most tagged reduce-scatters
// and all-reduces. The first in graph order on a tie, -1 if nothing is tagged. O(collectives).
GroupId PrimaryGroup(const Graph& graph, const Tags& tags);

using MakeGreedyPolicy = std::unique_ptr<GreedyPolicy> (*)(const PassContext&, GreedyTraffic);

// Tagged collectives, of the primary group if the options ask for it; program order as far as the
// buckets let it. The traffic is the same for both passes.
std::unique_ptr<GreedyPolicy> MakeOwnGreedyPolicy(const PassContext& context,
                                                  GreedyTraffic traffic);

// `upstream` decides where options.upstream is set.
std::unique_ptr<Pass> MakeGreedyBucketPass(MakeGreedyPolicy upstream);
std::unique_ptr<Pass> MakePreBucketPass(MakeGreedyPolicy upstream);

}  // namespace bucketd
