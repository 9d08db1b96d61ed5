// `bucketctl plan --stick-to PLAN`: a plan that is in use stays unless a new one gains enough.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/ctl/command.h"

#include "passes/pass/options.h"
#include "passes/replan.h"

namespace bucketd::ctl {

struct StickArgs {
  std::string plan;                                // a file; "": nothing to stick to
  double gain_percent = kDefaultReplanPpm * 1e-4;  // of the old plan's step time
};

// What came of it. Without `args.plan`, `planned` is the new plan and the rest is empty.
struct Chosen {
  Plan planned;         // with its figures under the costs of now
  Plan written;         // what a file gets: of a plan that is kept, what its own file says
  std::string verdict;  // for people
  std::optional<Json> json;
};

// OUT_OF_RANGE: usage. NOT_FOUND, INVALID_ARGUMENT: the old plan cannot be read; one that is not
// legal for this graph, or not what the options ask for, gives way instead.
absl::StatusOr<Chosen> StickTo(const Input& input, const PlanOptions& options,
                               const StickArgs& args, Plan fresh);

}  // namespace bucketd::ctl
