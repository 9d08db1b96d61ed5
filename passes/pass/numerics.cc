#include "passes/pass/numerics.h"

namespace bucketd {

absl::Span<const absl::string_view> Backends() {
  static constexpr absl::string_view kBackends[] = {"gloo", "nccl"};
  return kBackends;
}

bool MayMerge(CollectiveKind kind, const PlanOptions& options) {
  if (kind == CollectiveKind::kAllGather) return true;
  if (kind != CollectiveKind::kReduceScatter) return false;
  return options.numerics != Numerics::kExact || options.backend == "gloo";
}

BucketMode ModeOf(const Graph& graph, absl::Span<const NodeId> members,
                  const PlanOptions& options) {
  if (options.numerics != Numerics::kExact) return BucketMode::kPacked;
  for (const NodeId member : members) {
    const Collective& collective = graph.collective(graph.collective_of(member));
    if (collective.kind == CollectiveKind::kReduceScatter &&
        graph.outputs(member)[0].elements % 2 != 0) {
      return BucketMode::kGrouped;
    }
  }
  return BucketMode::kPacked;
}

}  // namespace bucketd
