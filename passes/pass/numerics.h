// What may be merged, and in which form, without breaking the promise about sums that a plan makes.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/ir/graph.h"
#include "passes/pass/options.h"
#include "passes/plan/plan.h"

namespace bucketd {

// Backends whose order of summation is known.
absl::Span<const absl::string_view> Backends();

// Whether collectives of this kind may be merged at all. All-gathers move bits and always may;
// all-reduces change the order of sums wherever they are merged: only if the options ask for it.
bool MayMerge(CollectiveKind kind, const PlanOptions& options);

// The form of a bucket of these collectives. Under exact numerics on gloo a packed reduce-scatter
// keeps every bit if gloo's chunks are the ranks' slices, in each member's own buffer and in the
// bucket's: with even element counts per rank, or, above 2 MiB a slice, with counts that divide by
// the number of mebibytes. A grouped one always keeps them.
BucketMode ModeOf(const Graph& graph, absl::Span<const NodeId> members, const PlanOptions& options);

}  // namespace bucketd
