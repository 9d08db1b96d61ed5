// Where a plan's time above the sharper lower bound goes.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/sharp_bound.h"

namespace bucketd {

// The causes, in the order in which they are taken: each at most what the ones before it leave,
// none below zero, together exactly `total`. Picoseconds.
struct Gap {
  int64_t total = 0;   // the plan's step less the bound
  int64_t memory = 0;  // the step less the fastest that was found for it in any memory
  int64_t copies = 0;  // the step less the same plan's if copies in and out of buckets cost nothing
  // What the same plan saves if then launches cost the host nothing either, less what the bound
  // saves by that. The rest is read off that last timeline, against that last bound:
  int64_t host = 0;
  int64_t head = 0;  // before the first kernel, beyond what any plan waits there
  int64_t tail = 0;  // after the last kernel, in the same way
  // Waits in between for collectives that began as soon as what they read was computed, beyond the
  // waits that the bound has. A collective that began later owes the delay to the wire.
  int64_t path = 0;
  int64_t wire = 0;  // what is left: waits for a busy wire or a late launch, latencies, slowdown

  // Names for people and JSON, largest cause first; ties as above.
  std::array<std::pair<absl::string_view, int64_t>, 7> Causes() const;
};

// `fastest_ps`: of the fastest plan seen in any memory; the plan's own where none is known.
// REQUIRES: VerifyPlan(graph, plan).ok(). O((nodes + edges) log nodes).
Gap GapOf(const Graph& graph, const Plan& plan, const Costs& costs, const SharpBound& bound,
          int64_t fastest_ps);

}  // namespace bucketd
