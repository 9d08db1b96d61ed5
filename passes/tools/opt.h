// bucketd-opt's work: a graph as text in, passes by name, a plan as text out.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/profile.h"
#include "passes/pass/options.h"
#include "passes/text/bir.h"

namespace bucketd {

struct OptRequest {
  std::vector<std::string> passes;  // if empty, the planner plans by options.mode
  PlanOptions options;
  CostProfile profile;
  std::vector<std::string> dump_after;  // names of passes, or "all"
  std::vector<std::string> show;        // of kOptShows
  bool print_graph = false;
  bool print_diagnostics = true;
  bool print_prediction = false;
};

// What OptRequest::show may name.
inline constexpr absl::string_view kOptShows[] = {"tags", "units", "overlap"};

// Its plan, if it has one, is what the passes begin with; else program order.
using OptInput = ParsedBir;

// In a golden, what follows this line is what must come out. No input.
inline constexpr char kGoldenMark[] = "// ---- EXPECT\n";

// The text form, up to a golden's mark, or a captured-graph file (gzip or JSON).
// INVALID_ARGUMENT names the place.
absl::StatusOr<OptInput> ReadOptInput(absl::string_view bytes);

// Comment lines with diagnostics and whatever else was asked for, then the plan; a graph that is
// printed and that nobody planned goes without one. Every pass's plan is verified. Errors are those
// of the passes, of MakePlan(), or NOT_FOUND for an unknown pass.
absl::StatusOr<std::string> RunOpt(const OptInput& input, const OptRequest& request);

}  // namespace bucketd
