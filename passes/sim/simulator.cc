#include "passes/sim/simulator.h"

#include "passes/sim/model.h"

namespace bucketd {

std::vector<internal::BucketCosts> internal::BucketCostsOf(const Graph& graph, const Plan& plan,
                                                           const Costs& costs) {
  std::vector<BucketCosts> buckets;
  buckets.reserve(plan.buckets.size());
  for (const Bucket& bucket : plan.buckets) buckets.push_back(CostsOf(graph, bucket, costs));
  return buckets;
}

Simulation Simulate(const Graph& graph, const Plan& plan, const Costs& costs, bool with_timeline) {
  const std::vector<internal::BucketCosts> buckets = internal::BucketCostsOf(graph, plan, costs);
  Simulation result =
      internal::RunTimeline(graph, plan, costs, buckets, internal::RatesOf(costs), with_timeline);
  internal::RunMemory(graph, plan, buckets, with_timeline, result);
  return result;
}

}  // namespace bucketd
