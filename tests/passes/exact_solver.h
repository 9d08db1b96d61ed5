// The best plan there is, by trying all of them: for steps of a handful of kernels and collectives.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd::testing {

// Every partition of the collectives into buckets, every form of each bucket, every order of
// kernels, starts and waits; members stand in the graph's order, as payloads do where no caller
// says otherwise; branches that cannot end before `best_known` or the best so far are
// cut. Only plans within `limit` bytes count. The best plan and its time, or nothing if more than
// `steps` were looked at. If nothing is faster than `best_known`, the plan is empty and the time is
// `best_known`. REQUIRES: no in-place and no ordered ops.
struct Optimum {
  int64_t total_ps = 0;
  Plan plan;
};
std::optional<Optimum> FindOptimum(const Graph& graph, const Costs& costs, int64_t best_known,
                                   int64_t limit = std::numeric_limits<int64_t>::max(),
                                   int64_t steps = 20'000'000);

}  // namespace bucketd::testing
