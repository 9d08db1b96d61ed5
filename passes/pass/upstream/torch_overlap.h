// The overlap scheduler and the bucketer behind it as torch 2.13 has them.
#pragma once

#include "absl/status/statusor.h"

#include "passes/pass/overlap/overlap_policy.h"
#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/pass/overlap_bucket/overlap_bucket_policy.h"

namespace bucketd::upstream {

// INVALID_ARGUMENT: nothing limits what memory may grow by, which torch does not survive.
absl::StatusOr<OverlapPolicy> TorchOverlap(const PlanOptions& options);

// The cast that torch's merged gather takes in: the one thing that the launch's input is for.
// kNoNode: there is none, or the launch is a bucket.
NodeId AbsorbedCast(const Graph& graph, const overlap_bucket::LaunchInfo& launch);

// With relations that have all of torch's defects.
const OverlapBucketPolicy& TorchOverlapBucket();

}  // namespace bucketd::upstream
