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

namespace bucketd::overlap_bucket {

struct Applied {
  std::vector<Bucket> buckets;  // by their starts in the order
  std::vector<Step> order;
  std::vector<LaunchOverlap> overlap;
  std::vector<BucketId> bucket_of_found;
};

// A bucket stands first where its seed stood, together with its wait; a stable sort by the graph's
// edges and those of `relations` then puts every step where it belongs. Errors as
// Relations::Order. O((nodes + edges) log buckets).
absl::StatusOr<Applied> Apply(const Model& model, const Plan& plan,
                              absl::Span<const FoundBucket> found, const Relations& relations);

}  // namespace bucketd::overlap_bucket
