#include <memory>

#include "passes/pass/greedy/greedy_plan.h"

namespace bucketd {
namespace {

// Greedy merging before an overlap scheduler, which then moves fewer and larger collectives.
// torch's bucketer, behind its scheduler, cannot merge two of which one is waited for before the
// next compute node and the other starts after it; here they are merged. The scheduler answers for
// memory. Off: the plan stays as it is.
class PreBucket : public Pass {
 public:
  explicit PreBucket(MakeGreedyPolicy upstream) : upstream_(upstream) {}

  absl::string_view name() const override { return "pre-bucket"; }
  bool needs_tags() const override { return true; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (!context.options.pre_bucketing) return false;
    const auto make = context.options.upstream ? upstream_ : MakeOwnGreedyPolicy;
    return AddGreedyBuckets(context, name(), *make(context, GreedyTraffic::kFsdpGroups), false,
                            plan);
  }

 private:
  const MakeGreedyPolicy upstream_;
};

}  // namespace

std::unique_ptr<Pass> MakePreBucketPass(MakeGreedyPolicy upstream) {
  return std::make_unique<PreBucket>(upstream);
}

}  // namespace bucketd
