#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_set.h"

#include "passes/base/index.h"
#include "passes/base/int128.h"
#include "passes/ir/bucket_key.h"
#include "passes/sim/machine.h"
#include "passes/sim/model.h"

namespace bucketd {
namespace {

using internal::Job;
using internal::OneMachine;

struct Wire {
  std::vector<Job> jobs;
  absl::flat_hash_set<BucketKey> keys;
  int64_t busy_ps = 0;
};

// Whether `n`, which reads `x`, comes behind its end. What reads a collective beside its wait comes
// behind its launch alone.
bool ComesBehind(const Graph& graph, NodeId n, NodeId x) {
  return graph.kind(x) != NodeKind::kCollective ||
         graph.collective(graph.collective_of(x)).wait == n;
}

}  // namespace

int64_t LowerBoundPs(const Graph& graph, const Costs& costs) {
  std::vector<int64_t> head(Index(graph.size()), 0), tail(head);
  for (NodeId n = 0; n < graph.size(); ++n) {
    for (const NodeId x : graph.inputs(n)) {
      const int64_t own_ps = ComesBehind(graph, n, x) ? costs.node_ps(x) : 0;
      head[Index(n)] = std::max(head[Index(n)], head[Index(x)] + own_ps);
    }
  }
  for (NodeId n = graph.size(); n-- > 0;) {
    for (const NodeId x : graph.inputs(n)) {
      if (!ComesBehind(graph, n, x)) continue;
      tail[Index(x)] = std::max(tail[Index(x)], tail[Index(n)] + costs.node_ps(n));
    }
  }
  std::vector<Job> compute;
  std::vector<Wire> wires(graph.groups().size());
  int64_t compute_ps = 0;
  for (NodeId n = 0; n < graph.size(); ++n) {
    Job job{head[Index(n)], costs.node_ps(n), tail[Index(n)]};
    if (graph.kind(n) == NodeKind::kCollective) {
      const CollectiveId c = graph.collective_of(n);
      const int64_t alpha_ps = costs.AlphaPs(c);
      job.work -= alpha_ps;
      Wire& wire = wires[Index(graph.collective(c).group)];
      wire.jobs.push_back(job);
      wire.busy_ps += job.work;
      // Whatever is bucketed, each kind of bucket costs its latency once.
      if (wire.keys.insert(BucketKey::Of(graph.collective(c))).second) wire.busy_ps += alpha_ps;
    } else {
      compute.push_back(job);
      compute_ps += job.work;
    }
  }
  int64_t busiest = 0;
  int64_t bound = 0;
  for (Wire& wire : wires) {
    busiest = std::max(busiest, wire.busy_ps);
    bound = std::max(bound, OneMachine(std::move(wire.jobs)));
  }
  // Wherever the busiest wire hides, compute is slower.
  const int64_t slowdown = costs.overlap_slowdown_ppb();
  const int64_t hidden =
      static_cast<int64_t>(Int128{busiest} * slowdown / (internal::kBillion + slowdown));
  return std::max({bound, busiest, OneMachine(std::move(compute)), compute_ps + hidden});
}

}  // namespace bucketd
