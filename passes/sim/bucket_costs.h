// What a bucket costs, by its form.
#pragma once

#include <cstdint>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/stream_clock.h"

namespace bucketd::internal {

// What is launched as one: two collectives or more of one kind and group.
struct BucketParts {
  CollectiveId first = 0;  // in the bucket's order: its link counts for all
  int64_t members = 0;
  CollectiveKind kind = CollectiveKind::kUnspecified;
  GroupId group = 0;
  int64_t message_bytes = 0, in_bytes = 0, out_bytes = 0;  // of all members together
};

// And times of its parts.
struct BucketCosts : BucketParts {
  bool copies_on_comm = false;  // packed, copies inside the collective's slot
  bool copies_on_compute = false;
  int64_t collective_ps = 0, copy_in_ps = 0, copy_out_ps = 0;
};

BucketCosts CostsOf(const BucketParts& parts, BucketMode mode, CopyStream copies,
                    const Costs& costs);
BucketCosts CostsOf(const Graph& graph, const Bucket& bucket, const Costs& costs);

// What launching the bucket takes of the streams.
LaunchWork WorkOf(const BucketCosts& bucket, const Costs& costs);

}  // namespace bucketd::internal
