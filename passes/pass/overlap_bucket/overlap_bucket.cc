#include <cstdint>
#include <memory>
#include <utility>

#include "passes/base/status_macros.h"
#include "passes/pass/overlap_bucket/overlap_bucket_apply.h"
#include "passes/pass/overlap_bucket/overlap_bucket_find.h"
#include "passes/pass/overlap_bucket/overlap_bucket_memory.h"
#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/pass/overlap_bucket/overlap_bucket_policy.h"
#include "passes/pass/overlap_bucket/overlap_bucket_report.h"

namespace bucketd {
namespace overlap_bucket {
namespace {

absl::StatusOr<std::unique_ptr<Relations>> MakeQuotient(const Model& model,
                                                        GroupTimelines& timeline) {
  return std::make_unique<Quotient>(model, timeline);
}

// Merges launches of one key where everything that hides them still stands between the merged
// start and the merged wait, and where no order becomes impossible.
class OverlapBucket : public Pass {
 public:
  explicit OverlapBucket(MakeRelations upstream) : upstream_(upstream) {}

  absl::string_view name() const override { return "bucket-overlap"; }

  absl::StatusOr<bool> Run(PassContext& context, Plan& plan) const override {
    if (!context.options.overlap_bucketing) return false;
    RETURN_IF_ERROR(FillIn(context));
    ASSIGN_OR_RETURN(const Model model, Model::Make(context, plan));
    MemoryFit fit(model, plan);
    while (true) {
      Result result;
      ASSIGN_OR_RETURN(result, Find(model, plan, fit.byte_limits()));
      // torch has no eye on memory.
      if (!model.upstream && fit.Shrink(result.found, result.applied)) continue;
      Report(model, plan, result.found, plan.diagnostics);
      fit.Report(plan.diagnostics);
      const bool changed = !result.found.buckets.empty() || plan.order != result.applied.order;
      plan.buckets = std::move(result.applied.buckets);
      plan.order = std::move(result.applied.order);
      context.overlap = std::move(result.applied.overlap);
      if (changed) context.launches.clear();
      return changed;
    }
  }

 private:
  struct Result {
    Found found;
    Applied applied;
  };

  // What tag-collectives leaves, where this pass runs alone.
  static absl::Status FillIn(PassContext& context) {
    if (context.constraints.pinned.size() != context.graph.collectives().size()) {
      ASSIGN_OR_RETURN(context.constraints, FindConstraints(context.graph));
    }
    if (context.directions.size() != context.graph.collectives().size()) {
      context.directions = CollectiveDirections(context.graph);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Result> Find(const Model& model, const Plan& plan,
                              absl::Span<const int64_t> byte_limits) const {
    GroupTimelines timeline(model);
    ASSIGN_OR_RETURN(const std::unique_ptr<Relations> relations,
                     (model.upstream ? upstream_ : MakeQuotient)(model, timeline));
    Result result;
    result.found = FindBuckets(model, timeline, *relations, byte_limits);
    ASSIGN_OR_RETURN(result.applied, Apply(model, plan, result.found.buckets, *relations));
    return result;
  }

  const MakeRelations upstream_;
};

}  // namespace
}  // namespace overlap_bucket

std::unique_ptr<Pass> MakeOverlapBucketPass(MakeRelations upstream) {
  return std::make_unique<overlap_bucket::OverlapBucket>(upstream);
}

}  // namespace bucketd
