// The part that the two passes of greedy bucketing share: which collectives, which caps, and the
// plan that follows.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/ir/bucket_key.h"
#include "passes/pass/greedy/greedy.h"
#include "passes/pass/greedy/greedy_policy.h"
#include "passes/pass/pass.h"

namespace bucketd {

// What one bucket may hold, and its caps.
struct GreedyKey {
  BucketKey of;
  Direction direction = Direction::kNone;
  CollectiveId first = -1;
  int64_t bytes = 0;          // of all candidates
  std::vector<int64_t> caps;  // of bucket 0, 1, ...; the last repeats
};

struct GreedyInput {
  std::vector<GreedyKey> keys;
  // Lists by position of the wait in plan.order, as the policy has them.
  std::vector<std::vector<GreedyCandidate>> stages;
  bool auto_caps = false;
};

// Collectives that may be merged: those that the policy wants, that are in no bucket yet and that
// in-place ops leave alone; numerics as in context.options. REQUIRES: tag-collectives has run.
GreedyInput CollectGreedyInput(const PassContext& context, const GreedyPolicy& policy,
                               const Plan& plan, const ItemGraph& items);

// Adds buckets to the plan and orders it. Automatic caps are halved, a few times at most, while
// memory is above the limit; with `enforce_memory` and no launches that a later pass could move,
// what then still is above it is reported, or FAILED_PRECONDITION if the limit is in bytes. Fills
// units and launches, unless the policy takes them out: each bucket, and each candidate that is in
// none, is a unit. Errors of the policy. True if anything was merged. Diagnostics, under the pass's
// name: greedy-summary, and one bucket-closed a bucket (the first thousand), whose nodes are the
// members, ascending.
absl::StatusOr<bool> AddGreedyBuckets(PassContext& context, absl::string_view pass,
                                      const GreedyPolicy& policy, bool enforce_memory, Plan& plan);

}  // namespace bucketd
