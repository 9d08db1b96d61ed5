#include "passes/pass/compute_run.h"

#include <algorithm>

#include "passes/base/collectives.h"

namespace bucketd {
namespace {

bool StartsScatter(const Graph& graph, absl::Span<const Bucket> buckets, const Step& step) {
  NodeId node = step.id;
  if (step.kind == Step::Kind::kWait) return false;
  if (step.kind == Step::Kind::kStart) node = buckets[static_cast<size_t>(step.id)].members[0];
  return graph.kind(node) == NodeKind::kCollective &&
         Scatters(graph.collective(graph.collective_of(node)).kind);
}

}  // namespace

int64_t MaxComputeBetweenReduceScatters(const Graph& graph, absl::Span<const Bucket> buckets,
                                        absl::Span<const Step> order) {
  int64_t run = 0, longest = 0;
  for (const Step& step : order) {
    if (StartsScatter(graph, buckets, step)) {
      run = 0;
    } else if (step.kind == Step::Kind::kNode && graph.is_compute(step.id)) {
      longest = std::max(longest, ++run);
    }
  }
  return longest;
}

}  // namespace bucketd
