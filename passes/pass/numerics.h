// What may be merged, and in which form, without breaking the promise about sums that a plan makes.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/ir/graph.h"
#include "passes/pass/options.h"
#include "passes/pass/pass.h"
#include "passes/pass/tags.h"
#include "passes/plan/plan.h"

namespace bucketd {

// Whether a collective may share a bucket at all. One with a symbolic size never may: a bucket's
// layout is one for all steps. All-gathers move bits and always may. A sum of
// two ranks is the same in any order; with more, an all-reduce's sums are added in another order
// wherever it is merged: eager order allows that to gradients, as eager DDP's reducer merges those
// too, and free numerics to every sum. `tags`: empty where collectives have not been tagged.
bool MayMerge(const Graph& graph, CollectiveId c, const Tags& tags, const PlanOptions& options);

// Whether the graph lets a bucket stand for a collective: of one tensor it makes a result of its
// own, which its wait alone reads and hands on with nothing beside it, and it is not pinned.
// REQUIRES: context.constraints are there.
bool FitsBucket(const PassContext& context, CollectiveId c);
// FitsBucket() and MayMerge().
bool MayJoinBucket(const PassContext& context, CollectiveId c);

// The form of a bucket of these collectives. Under exact numerics on gloo a packed reduce-scatter
// of more than two ranks keeps every bit if gloo's chunks are the ranks' slices, in each member's
// own buffer and in the bucket's: with even element counts per rank, or, above 2 MiB a slice, with
// counts that divide by the number of mebibytes. A grouped one always keeps them.
BucketMode ModeOf(const Graph& graph, absl::Span<const NodeId> members, const PlanOptions& options);

// Names in the plan's diagnostics which gradients' reductions stay alone for the sake of sums, and
// which all-reduces are added up in another order than without a plan. REQUIRES: tag-collectives
// has run; else nothing is said.
void ReportSums(const PassContext& context, Plan& plan);

// Whether gloo adds every element of such a reduce-scatter in an order that its rank alone decides:
// then each sum is the same in any buffer of which this holds. `elements`: of one rank's slice.
bool ChunksAreSlices(int64_t elements, DType dtype);

}  // namespace bucketd
