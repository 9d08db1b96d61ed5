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
#include "passes/sim/simulator.h"

namespace bucketd {
namespace {

using overlap_bucket::Applied;
using overlap_bucket::Found;
using overlap_bucket::Model;

absl::StatusOr<std::unique_ptr<overlap_bucket::Relations>> MakeQuotient(
    const Model& model, overlap_bucket::GroupTimelines& timeline) {
  return std::make_unique<overlap_bucket::Quotient>(model, timeline);
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
    overlap_bucket::MemoryFit fit(model, plan);
    while (true) {
      Result result;
      ASSIGN_OR_RETURN(result, Find(model, plan, fit.byte_limits()));
      // torch has no eye on memory.
      if (!model.upstream && fit.Shrink(result.found, result.applied)) continue;
      overlap_bucket::Report(model, plan, result.found, plan.diagnostics);
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
    if (context.program_order.total_ps == 0) {
      context.program_order =
          Simulate(context.graph, ProgramOrder(context.graph), context.costs).prediction;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Result> Find(const Model& model, const Plan& plan,
                              absl::Span<const int64_t> byte_limits) const {
    overlap_bucket::GroupTimelines timeline(model);
    ASSIGN_OR_RETURN(const std::unique_ptr<overlap_bucket::Relations> relations,
                     (model.upstream ? upstream_ : MakeQuotient)(model, timeline));
    Result result;
    result.found = overlap_bucket::FindBuckets(model, timeline, *relations, byte_limits);
    ASSIGN_OR_RETURN(result.applied,
                     overlap_bucket::Apply(model, plan, result.found.buckets, *relations));
    return result;
  }

  const MakeRelations upstream_;
};

}  // namespace

std::unique_ptr<Pass> MakeOverlapBucketPass(MakeRelations upstream) {
  return std::make_unique<OverlapBucket>(upstream);
}

}  // namespace bucketd
