// What a plan will take: the referee's model (tests/data/referee/MODEL.md) in integer picoseconds.
// Equal to the referee within 0.01 us or 1e-7 of the total; bytes exactly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd {

// One thing that happened, for pictures.
struct TimelineEvent {
  enum class Kind : uint8_t { kCompute, kCollective, kCopyIn, kCopyOut, kStall };
  Kind kind = Kind::kCompute;
  NodeId node = kNoNode;  // compute node, unbucketed collective, or the wait of a stall
  BucketId bucket = -1;   // collective, copies and stalls of a bucket
  GroupId group = -1;     // collectives, and copies on a communication stream
  int64_t start_ps = 0, end_ps = 0;
};

// When a collective or a bucket held its communication stream, copies on that stream included;
// Bucket's times are without them.
struct WireTime {
  int64_t start_ps = 0, end_ps = 0;
};

struct Simulation {
  Prediction prediction;
  std::vector<WireTime> bucket_wire;  // one a bucket
  // Where the peak of memory is, in the referee's words: a node's name, "b3.copy_in", or "" for
  // before the first node.
  std::string peak_at;
  std::vector<TimelineEvent> events;     // empty unless asked for
  std::vector<int64_t> live_bytes;       // after each step of the order; empty unless asked for
  std::vector<int64_t> step_compute_ps;  // compute stream's clock after each step; as above
};

// REQUIRES: VerifyPlan(graph, plan).ok(). O(nodes + edges). Deterministic, thread-safe.
Simulation Simulate(const Graph& graph, const Plan& plan, const Costs& costs,
                    bool with_timeline = false);

// The referee's lower bound: no plan for this graph can be faster. O((nodes + edges) log nodes).
int64_t LowerBoundPs(const Graph& graph, const Costs& costs);

}  // namespace bucketd
