// A lower bound that knows more than the referee's. BOUND.md has the proofs.
#pragma once

#include <cstdint>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"

namespace bucketd {

struct SharpBound {
  int64_t total_ps = 0;  // no legal plan of this graph ends earlier
  int64_t head_ps = 0;   // no kernel begins earlier
  int64_t tail_ps = 0;   // so much follows the last kernel, at least
};

// Whatever a plan's memory, mode and numerics. Every rounding goes down. Deterministic,
// thread-safe. O((nodes + edges) log nodes). With free launches: of plans that the host does not
// hold up.
SharpBound SharpBoundOf(const Graph& graph, const Costs& costs, bool free_launches = false);

}  // namespace bucketd
