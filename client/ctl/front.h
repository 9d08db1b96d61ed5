// `bucketctl plan --pareto`: the front of step time against peak memory.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/ctl/command.h"

#include "passes/pass/options.h"

namespace bucketd::ctl {

// Prints the front as a table or as one JSON object. With `plan_out`, "plan.json" say, writes the
// plan of each point to plan.1.json, plan.2.json and so on, by ascending memory.
absl::Status ShowFront(const Input& input, const PlanOptions& options, const std::string& plan_out,
                       bool json);

}  // namespace bucketd::ctl
