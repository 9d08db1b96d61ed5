// A decoded order as a plan, and back.
#pragma once

#include "passes/auto/decoder.h"
#include "passes/auto/problem.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd::search {

// Every node of the graph: leaders as decoded, the others behind them. Members stand in payload
// order, and buckets are laid out. REQUIRES: `decoded` is of `problem`, and that of `context`.
Plan PlanOf(const PassContext& context, const Problem& problem, const Decoded& decoded);

// The other way round: a plan's launches, waits and leaders in order. Its figures are not filled.
Decoded OrderOf(const Graph& graph, const Problem& problem, const Plan& plan);

}  // namespace bucketd::search
