#include "passes/pass/numerics.h"

#include <algorithm>

#include "passes/base/collectives.h"

namespace bucketd {
namespace {

constexpr int64_t kGlooSegmentBytes = int64_t{1} << 20;

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

}  // namespace

absl::Span<const absl::string_view> Backends() {
  static constexpr absl::string_view kBackends[] = {"gloo", "nccl"};
  return kBackends;
}

bool MayMerge(CollectiveKind kind, const PlanOptions& options) {
  if (!Bucketable(kind) || !Reduces(kind)) return Bucketable(kind);
  if (ReducesWhole(kind)) return options.MergesAllReduces();
  return options.numerics != Numerics::kExact || options.backend == "gloo";
}

BucketMode ModeOf(const Graph& graph, absl::Span<const NodeId> members,
                  const PlanOptions& options) {
  if (options.numerics != Numerics::kExact) return BucketMode::kPacked;
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

}  // namespace bucketd
