#include <memory>

#include "passes/pass/greedy/greedy_plan.h"

namespace bucketd {
namespace {

// Merges parameter and gradient collectives by bytes and topological span, whatever stands between
// them. Blind to overlap: prefetch, or a scheduler, comes after it.
class GreedyBucketPass : public Pass {
 public:
  explicit GreedyBucketPass(MakeGreedyPolicy upstream) : upstream_(upstream) {}

  absl::string_view name() const override { return "greedy-bucket"; }
  bool needs_tags() const override { return true; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    const auto make = context.options.upstream ? upstream_ : MakeOwnGreedyPolicy;
    return AddGreedyBuckets(context, name(), *make(context, GreedyTraffic::kAny), true, plan);
  }

 private:
  const MakeGreedyPolicy upstream_;
};

}  // namespace

std::unique_ptr<Pass> MakeGreedyBucketPass(MakeGreedyPolicy upstream) {
  return std::make_unique<GreedyBucketPass>(upstream);
}

}  // namespace bucketd
