// What may be decided otherwise in the overlap-preserving bucketer; passes/pass/upstream decides as
// torch 2.13 does.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "passes/pass/overlap_bucket/overlap_bucket_model.h"
#include "passes/pass/overlap_bucket/overlap_bucket_relations.h"
#include "passes/pass/overlap_bucket/overlap_bucket_timeline.h"
#include "passes/pass/pass.h"

namespace bucketd::overlap_bucket {

struct Policy {
  Rules rules;
  absl::StatusOr<std::unique_ptr<Relations>> (*make_relations)(const Model&, GroupTimelines&);
};

}  // namespace bucketd::overlap_bucket

namespace bucketd {

// `upstream` decides where options.upstream is set.
std::unique_ptr<Pass> MakeOverlapBucketPass(const overlap_bucket::Policy& upstream);

}  // namespace bucketd
