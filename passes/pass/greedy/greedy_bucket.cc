#include <memory>

#include "passes/pass/greedy/greedy_plan.h"
#include "passes/pass/passes.h"

namespace bucketd {
namespace {

// Merges parameter and gradient collectives by bytes and topological span, whatever stands between
// them. Blind to overlap: prefetch, or a scheduler, comes after it.
class GreedyBucketPass : public Pass {
 public:
  absl::string_view name() const override { return "greedy-bucket"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    return AddGreedyBuckets(context, name(), GreedyTraffic::kAny, true, plan);
  }
};

}  // namespace

std::unique_ptr<Pass> MakeGreedyBucketPass() { return std::make_unique<GreedyBucketPass>(); }

}  // namespace bucketd
