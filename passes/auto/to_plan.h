// A decoded order as a plan.
#pragma once

#include "passes/auto/decoder.h"
#include "passes/auto/problem.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd::search {

// Every node of the graph: leaders as decoded, the others behind them. Members stand in payload
// order, and buckets are laid out. REQUIRES: `decoded` is of `problem`, and that of `context`.
Plan PlanOf(const PassContext& context, const Problem& problem, const Decoded& decoded);

}  // namespace bucketd::search
