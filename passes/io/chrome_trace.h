// The predicted timeline in the Chrome trace event format, for ui.perfetto.dev or chrome://tracing.
#pragma once

#include <string>

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd {

// Tracks: compute stream, one communication stream a group, stalls; a counter for live memory.
// Simulates `plan` and, if with_program_order, the untouched graph beside it as a second process.
std::string ChromeTrace(const Graph& graph, const Plan& plan, const Costs& costs,
                        bool with_program_order = true);

}  // namespace bucketd
