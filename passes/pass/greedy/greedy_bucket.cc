#include <memory>

#include "passes/pass/greedy/greedy_plan.h"

namespace bucketd {
namespace {

// Merges parameter and gradient collectives by bytes and topological span, whatever stands between
// them. Blind to overlap: prefetch, or a scheduler, comes after it.
//
// Before an overlap scheduler, which then moves fewer and larger collectives and answers for
// memory, it is the pass "pre-bucket". torch's bucketer, behind its scheduler, cannot merge two of
// which one is waited for before the next compute node and the other starts after it; here they are
// merged. Off: the plan stays as it is.
class GreedyPass : public Pass {
 public:
  GreedyPass(bool before_scheduler, MakeGreedyPolicy upstream)
      : before_scheduler_(before_scheduler), upstream_(upstream) {}

  absl::string_view name() const override {
    return before_scheduler_ ? "pre-bucket" : "greedy-bucket";
  }
  bool needs_tags() const override { return true; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (before_scheduler_ && !context.options.pre_bucketing) return false;
    const auto make = context.options.upstream ? upstream_ : MakeOwnGreedyPolicy;
    const auto policy =
        make(context, before_scheduler_ ? GreedyTraffic::kFsdpGroups : GreedyTraffic::kAny);
    return AddGreedyBuckets(context, name(), *policy, !before_scheduler_, plan);
  }

 private:
  const bool before_scheduler_;
  const MakeGreedyPolicy upstream_;
};

}  // namespace

std::unique_ptr<Pass> MakeGreedyBucketPass(MakeGreedyPolicy upstream) {
  return std::make_unique<GreedyPass>(false, upstream);
}

std::unique_ptr<Pass> MakePreBucketPass(MakeGreedyPolicy upstream) {
  return std::make_unique<GreedyPass>(true, upstream);
}

}  // namespace bucketd
