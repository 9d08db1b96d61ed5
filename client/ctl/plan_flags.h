// The flags that say how to plan: one for every option of the planner.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/command.h"

#include "passes/pass/options.h"

namespace bucketd::ctl {

struct PlanFlags {
  std::string graph, memory_limit, param_order;
  CostFlags costs;
  std::vector<std::pair<std::string, std::string>> set;  // options by name, as given
};

// GRAPH, --profile (not --costs), and a flag a row of AllOptions(). `flags` outlives the parsing.
// `mode`: what a command takes where --mode is not given, for its help.
void AddPlanFlags(const Command& command, PlanFlags& flags, absl::string_view mode = "auto");

// As the flags say, not yet validated: a caller may set more. OUT_OF_RANGE: usage.
absl::StatusOr<PlanOptions> OptionsFrom(const PlanFlags& flags);

// --memory-limit: "1.05x", "+5%", "38GiB" or bytes. Sets memory_limit_ppm for a share of program
// order's peak, else memory_limit_bytes. OUT_OF_RANGE says what was expected.
absl::Status ParseMemoryLimit(absl::string_view text, PlanOptions& options);

// Errors of options are usage errors: OUT_OF_RANGE.
absl::Status AsUsage(const absl::Status& status);

}  // namespace bucketd::ctl
