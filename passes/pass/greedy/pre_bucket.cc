#include <memory>

#include "passes/pass/greedy/greedy_plan.h"
#include "passes/pass/passes.h"

namespace bucketd {
namespace {

// Greedy merging before an overlap scheduler, which then moves fewer and larger collectives, and
// which upstream could not merge what waits at once (PASSES.md §2.2). The scheduler answers for
// memory. Off: the plan stays as it is.
class PreBucket : public Pass {
 public:
  absl::string_view name() const override { return "pre-bucket"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (!context.options.pre_bucketing) return false;
    return AddGreedyBuckets(context, name(), GreedyTraffic::kFsdpGroups, false, plan);
  }
};

}  // namespace

std::unique_ptr<Pass> MakePreBucketPass() { return std::make_unique<PreBucket>(); }

}  // namespace bucketd
