// What may be decided otherwise in greedy bucketing: which collectives, in which lists, under which
// caps, and the order that follows. passes/pass/upstream decides as torch 2.13 does.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

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

using MakeGreedyPolicy = std::unique_ptr<GreedyPolicy> (*)(const PassContext&, GreedyTraffic);

// Tagged collectives, of the primary group if the options ask for it; program order as far as the
// buckets let it. The traffic is the same for both passes.
std::unique_ptr<GreedyPolicy> MakeOwnGreedyPolicy(const PassContext& context,
                                                  GreedyTraffic traffic);

// `upstream` decides where options.upstream is set.
std::unique_ptr<Pass> MakeGreedyBucketPass(MakeGreedyPolicy upstream);
std::unique_ptr<Pass> MakePreBucketPass(MakeGreedyPolicy upstream);

}  // namespace bucketd
