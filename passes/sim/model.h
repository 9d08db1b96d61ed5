// Parts of the simulator. Internal to passes/sim.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/bucket_costs.h"
#include "passes/sim/simulator.h"

namespace bucketd::internal {

// Hands a step to whoever walks the order.
template <typename Walk>
void Visit(const Step& step, Walk& walk) {
  switch (step.kind) {
    case Step::Kind::kNode:
      walk.RunNode(step.id);
      break;
    case Step::Kind::kStart:
      walk.StartBucket(step.id);
      break;
    case Step::Kind::kWait:
      walk.WaitBucket(step.id);
      break;
  }
}

// Whether launches take the host's time, as the costs say, or none.
enum class Launches : uint8_t { kCost, kFree };

// Fills times, wire times and, if asked, events and step clocks.
void RunTimeline(const Graph& graph, const Plan& plan, const Costs& costs,
                 const std::vector<BucketCosts>& buckets, bool with_timeline, Launches launches,
                 Simulation& result);

// Fills peak_bytes, peak_at and, if asked, live_bytes.
void RunMemory(const Graph& graph, const Plan& plan, const std::vector<BucketCosts>& buckets,
               bool with_timeline, Simulation& result);

}  // namespace bucketd::internal
