// Writes found buckets into a plan. Internal to the bucketer.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/pass/overlap_bucket/overlap_bucket_find.h"
#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/pass/overlap_bucket/overlap_bucket_relations.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd::overlap {

struct Applied {
  std::vector<Bucket> buckets;  // by their starts in the order
  std::vector<Step> order;
  std::vector<LaunchOverlap> overlap;
  std::vector<BucketId> bucket_of_found;
};

// A bucket stands first where its seed stood, together with its wait; a stable sort by the graph's
// edges and `edges` then puts every step where it belongs. INTERNAL if there is no order; with the
// upstream option FAILED_PRECONDITION, or without the edges that make the cycle if autofix_cycles
// is on. O((nodes + edges) log buckets); upstream's repair is quadratic in what lies on cycles.
absl::StatusOr<Applied> Apply(const Model& model, const Plan& plan,
                              absl::Span<const FoundBucket> found, std::vector<Edge> edges);

}  // namespace bucketd::overlap
