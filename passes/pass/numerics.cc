#include "passes/pass/numerics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"

namespace bucketd {
namespace {

constexpr int64_t kGlooSegmentBytes = int64_t{1} << 20;

// Addition commutes: two addends have one sum, whatever the order.
bool AddsTwo(const Graph& graph, CollectiveId c) {
  return graph.group(graph.collective(c)).size <= 2;
}

bool IsGradient(const Tags& tags, CollectiveId c) {
  return !tags.of.empty() &&
         (tags[c].tag == Tag::kDdpAllReduce || tags[c].tag == Tag::kHsdpAllReduce);
}

}  // namespace

// gloo adds a buffer chunk by chunk, each chunk along its own ring of ranks. A chunk is a rank's
// slice in two or more equal segments of at most a mebibyte, rounded up to whole elements. Where
// nothing is rounded, chunks are slices and an element's sum depends on its rank alone; else
// elements near the ends of slices are added along another rank's ring, and which those are
// depends on the slice's size.
bool ChunksAreSlices(int64_t elements, DType dtype) {
  const int64_t bytes = elements * ItemSize(dtype);
  const int64_t segments =
      std::max<int64_t>(2, (bytes + kGlooSegmentBytes - 1) / kGlooSegmentBytes);
  return elements % segments == 0;
}

bool MayMerge(const Graph& graph, CollectiveId c, const Tags& tags, const PlanOptions& options) {
  const CollectiveKind kind = graph.collective(c).kind;
  if (graph.collective(c).symbolic) return false;
  if (!Bucketable(kind) || !Reduces(kind)) return Bucketable(kind);
  const bool whole = ReducesWhole(kind);
  if (whole && !options.bucket_all_reduce) return false;
  if (options.numerics == Numerics::kFree) return true;
  if (whole && !IsGradient(tags, c)) return false;
  if (options.numerics == Numerics::kEagerOrder || AddsTwo(graph, c)) return true;
  return !whole && options.backend == "gloo";
}

bool FitsBucket(const PassContext& context, CollectiveId c) {
  const Graph& graph = context.graph;
  const Collective& collective = graph.collective(c);
  return collective.wait != kNoNode && graph.users(collective.start).size() == 1 &&
         graph.inputs(collective.start).size() == 1 && graph.alias_of(collective.start).empty() &&
         graph.alias_of(collective.wait) == absl::MakeConstSpan(&collective.start, 1) &&
         !context.constraints.pinned[Index(c)];
}

bool MayJoinBucket(const PassContext& context, CollectiveId c) {
  return FitsBucket(context, c) && MayMerge(context.graph, c, context.tags, context.options);
}

BucketMode ModeOf(const Graph& graph, absl::Span<const NodeId> members,
                  const PlanOptions& options) {
  if (options.numerics != Numerics::kExact || AddsTwo(graph, graph.collective_of(members[0]))) {
    return BucketMode::kPacked;
  }
  int64_t together = 0;
  DType dtype = DType::kUnspecified;
  for (const NodeId member : members) {
    const Collective& collective = graph.collective(graph.collective_of(member));
    if (!Scatters(collective.kind)) return BucketMode::kPacked;
    const int64_t elements = graph.outputs(member)[0].elements;
    dtype = collective.dtype;
    if (!ChunksAreSlices(elements, dtype)) return BucketMode::kGrouped;
    together += elements;
  }
  return ChunksAreSlices(together, dtype) ? BucketMode::kPacked : BucketMode::kGrouped;
}

void ReportSums(const PassContext& context, Plan& plan) {
  const Graph& graph = context.graph;
  const PlanOptions& options = context.options;
  std::vector<NodeId> merged, reduced, scattered;
  for (CollectiveId c = 0; Index(c) < context.tags.of.size(); ++c) {
    const Collective& collective = graph.collective(c);
    if (context.tags[c].tag == Tag::kNone || collective.symbolic) continue;
    if (MayMerge(graph, c, context.tags, options)) continue;
    (ReducesWhole(collective.kind) ? reduced : scattered).push_back(collective.start);
  }
  for (const Bucket& bucket : plan.buckets) {
    const CollectiveId c = graph.collective_of(bucket.members[0]);
    if (!ReducesWhole(graph.collective(c).kind) || AddsTwo(graph, c)) continue;
    merged.insert(merged.end(), bucket.members.begin(), bucket.members.end());
  }
  AddDiagnostic(
      "all-reduce-merged", std::move(merged),
      "all-reduces share buckets: their sums are those of the flat buffers, which are not the "
      "unplanned graph's and need not be eager DDP's (numerics exact keeps the unplanned graph's)",
      plan.diagnostics);
  AddDiagnostic(
      "all-reduce-unmerged", std::move(reduced),
      options.bucket_all_reduce
          ? "all-reduces of gradients stay alone: merging them changes sums (numerics eager_order "
            "allows it)"
          : "all-reduces of gradients stay alone: bucket_all_reduce is off",
      plan.diagnostics);
  AddDiagnostic(
      "numerics-unmerged", std::move(scattered),
      absl::StrCat("reduce-scatters stay alone: merging them can change sums on ", options.backend),
      plan.diagnostics);
}

}  // namespace bucketd
