// Parts of the simulator. Internal to passes/sim.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/busy_time.h"
#include "passes/sim/simulator.h"

namespace bucketd::internal {

// Sizes and times of a bucket's parts.
struct BucketCosts {
  CollectiveKind kind = CollectiveKind::kUnspecified;
  GroupId group = 0;
  bool copies_on_comm = false;  // packed, copies inside the collective's slot
  bool copies_on_compute = false;
  int64_t in_bytes = 0, out_bytes = 0;  // of all members together
  int64_t collective_ps = 0, copy_in_ps = 0, copy_out_ps = 0;
};

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

BucketCosts CostsOf(const Graph& graph, const Bucket& bucket, const Costs& costs);

// The size of a tensor that stands for a node, 0 if it has none.
int64_t FirstOutputBytes(const Graph& graph, NodeId n);

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
