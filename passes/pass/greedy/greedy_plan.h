// The part that the two passes of greedy bucketing share: which collectives, which caps, and the
// plan that follows.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/ir/bucket_key.h"
#include "passes/pass/greedy/greedy.h"
#include "passes/pass/pass.h"

namespace bucketd {

// What one bucket may hold, and its caps.
struct GreedyKey {
  BucketKey of;
  Direction direction = Direction::kNone;  // kNone under upstream: torch does not tell
  CollectiveId first = -1;
  int64_t bytes = 0;          // of all candidates
  std::vector<int64_t> caps;  // of bucket 0, 1, ...; the last repeats; kNoCap: none
};

struct GreedyInput {
  std::vector<GreedyKey> keys;
  // By position of the wait in plan.order. Upstream: one list a kind, as torch works through them;
  // else one list.
  std::vector<std::vector<GreedyCandidate>> stages;
  bool auto_caps = false;
};

enum class GreedyTraffic : uint8_t {
  kAny,         // under upstream: all-reduces of every group
  kFsdpGroups,  // under upstream: nothing without a gather of a parameter, and all-reduces only on
                // the groups of such gathers
};

// Collectives that may be merged: those of parameters and gradients that are in no bucket yet and
// that in-place ops leave alone; numerics, primary_group_only and upstream as in context.options.
// REQUIRES: tag-collectives has run.
GreedyInput CollectGreedyInput(const PassContext& context, const Plan& plan, const ItemGraph& items,
                               GreedyTraffic traffic);

// Adds buckets to the plan and orders it: program order as far as the buckets let it, under
// upstream torch's stable sort. Automatic caps are halved, a few times at most, while memory is
// above the limit; with `enforce_memory` and no launches that a later pass could move, what then
// still is above it is reported, or FAILED_PRECONDITION if the limit is in bytes. Fills units and
// launches: each bucket, and each candidate that is in none, is a unit. Under upstream there are no
// launches, so nothing moves them later; FAILED_PRECONDITION if its buckets depend on one another.
// True if anything was merged. Diagnostics, under the pass's name: greedy-summary, and one
// bucket-closed a bucket (the first thousand), whose nodes are the members, ascending.
absl::StatusOr<bool> AddGreedyBuckets(PassContext& context, absl::string_view pass,
                                      GreedyTraffic traffic, bool enforce_memory, Plan& plan);

}  // namespace bucketd
