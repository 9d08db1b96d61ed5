#include "passes/sim/simulator.h"

#include "passes/sim/model.h"

namespace bucketd {

Simulation Simulate(const Graph& graph, const Plan& plan, const Costs& costs, bool with_timeline) {
  std::vector<internal::BucketCosts> buckets;
  buckets.reserve(plan.buckets.size());
  for (const Bucket& bucket : plan.buckets) {
    buckets.push_back(internal::CostsOf(graph, bucket, costs));
  }
  Simulation result;
  internal::RunTimeline(graph, plan, costs, buckets, with_timeline, internal::Launches::kCost,
                        result);
  internal::RunMemory(graph, plan, buckets, with_timeline, result);
  return result;
}

}  // namespace bucketd
