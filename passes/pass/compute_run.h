// What an order does to the time that gradients live before they are reduced.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd {

// The longest run of compute nodes without the start of a reduce-scatter among them, those before
// the first and after the last included: how far a plan has piled up compute in front of its
// scatters, whose gradients then live the longer. `order` may be that of any plan for these
// buckets. O(order).
int64_t MaxComputeBetweenReduceScatters(const Graph& graph, absl::Span<const Bucket> buckets,
                                        absl::Span<const Step> order);

}  // namespace bucketd
