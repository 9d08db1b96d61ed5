// The overlap-preserving bucketer, which is told of torch 2.13's relations by passes/pass/upstream.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/pass/overlap_bucket/overlap_bucket_relations.h"
#include "passes/pass/overlap_bucket/overlap_bucket_timeline.h"
#include "passes/pass/pass.h"

namespace bucketd {

using MakeRelations = absl::StatusOr<std::unique_ptr<overlap_bucket::Relations>> (*)(
    const overlap_bucket::Model&, overlap_bucket::GroupTimelines&);

// `upstream` makes them where options.upstream is set.
std::unique_ptr<Pass> MakeOverlapBucketPass(MakeRelations upstream);

}  // namespace bucketd
