// The predicted timeline in the Chrome trace event format, for ui.perfetto.dev or chrome://tracing.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd {

// Tracks: compute stream, one communication stream a group, stalls; a counter for live memory.
// Simulates `plan` and, if with_program_order, the untouched graph beside it as a second process.
std::string ChromeTrace(const Graph& graph, const Plan& plan, const Costs& costs,
                        bool with_program_order = true);

// Something that was measured when the plan ran.
struct MeasuredSpan {
  std::string track, name;
  int64_t begin_ps = 0, end_ps = 0;  // from the step's begin
};

// The prediction, and what was measured beside it as a second process that is called `title`; a
// track of it for each that spans name, in the order of their first spans.
std::string MeasuredChromeTrace(const Graph& graph, const Plan& plan, const Costs& costs,
                                const std::string& title, absl::Span<const MeasuredSpan> measured);

}  // namespace bucketd
