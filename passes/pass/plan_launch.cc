#include "passes/pass/plan_launch.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/sim/bucket_costs.h"

namespace bucketd {

std::vector<int32_t> PlacesOf(const Graph& graph, absl::Span<const Bucket> buckets,
                              absl::Span<const Step> order) {
  std::vector<int32_t> places(Index(graph.size()), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    const Step& step = order[i];
    const auto place = static_cast<int32_t>(i);
    if (step.kind == Step::Kind::kNode) {
      places[Index(step.id)] = place;
      continue;
    }
    for (const NodeId member : buckets[Index(step.id)].members) {
      const Collective& c = graph.collective(graph.collective_of(member));
      places[Index(step.kind == Step::Kind::kStart ? c.start : c.wait)] = place;
    }
  }
  return places;
}

PlanLaunch LaunchOf(const Graph& graph, const Costs& costs, const Plan& plan, BucketId bucket,
                    CollectiveId collective) {
  Bucket alone;
  if (bucket < 0) alone.members = {graph.collective(collective).start};
  const Bucket& of = bucket < 0 ? alone : plan.buckets[Index(bucket)];
  PlanLaunch launch;
  launch.bucket = bucket;
  launch.collective = graph.collective_of(of.members.front());
  launch.est_ps = internal::CostsOf(graph, of, costs).collective_ps;
  for (const NodeId member : of.members) {
    launch.bytes += OutputBytes(graph, member);
    for (const NodeId x : graph.inputs(member)) launch.bytes += OutputBytes(graph, x);
  }
  if (ReducesWhole(graph.collective(launch.collective).kind)) launch.bytes /= 2;
  return launch;
}

NodeId FirstStart(const Graph& graph, const Plan& plan, const Launch& launch) {
  return launch.bucket >= 0 ? plan.buckets[Index(launch.bucket)].members[0]
                            : graph.collective(launch.collective).start;
}

std::vector<NodeId> MembersOf(const Graph& graph, const Plan& plan, const PlanLaunch& launch) {
  if (launch.bucket >= 0) return plan.buckets[Index(launch.bucket)].members;
  return {graph.collective(launch.collective).start};
}

}  // namespace bucketd
