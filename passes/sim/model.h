// Parts of the simulator. Internal to passes/sim.
#pragma once

#include <vector>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/bucket_costs.h"
#include "passes/sim/simulator.h"
#include "passes/sim/stream_clock.h"

namespace bucketd::internal {

// One a bucket of the plan.
std::vector<BucketCosts> BucketCostsOf(const Graph& graph, const Plan& plan, const Costs& costs);

// Times, wire times and, if asked, events and step clocks; the rest is not filled.
Simulation RunTimeline(const Graph& graph, const Plan& plan, const Costs& costs,
                       const std::vector<BucketCosts>& buckets, const ClockRates& rates,
                       bool with_timeline);

// Fills peak_bytes, peak_at and, if asked, live_bytes.
void RunMemory(const Graph& graph, const Plan& plan, const std::vector<BucketCosts>& buckets,
               bool with_timeline, Simulation& result);

}  // namespace bucketd::internal
