#include "client/ctl/traced_step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/cost/device_model.h"
#include "passes/io/fsdp_graph.h"
#include "passes/io/fsdp_trace.h"

namespace bucketd::ctl {
namespace {

std::string Stem(absl::string_view path) {
  path.remove_prefix(std::min(path.size(), path.rfind('/') + 1));
  return std::string(path.substr(0, path.find('.')));
}

absl::StatusOr<Input> InputOfStep(const FsdpStep& step, const FsdpGraphOptions& options,
                                  const CostProfile& profile) {
  ASSIGN_OR_RETURN(CapturedGraph captured, GraphOfFsdpStep(step, options));
  ASSIGN_OR_RETURN(StatedCosts links, ModelCosts(captured.graph, captured.mesh, profile.device));
  captured.costs.links = std::move(links.links);
  return InputOf(std::move(captured), profile, step.source);
}

}  // namespace

absl::StatusOr<TracedStep> LoadTracedStep(const std::string& path, const CostFlags& costs,
                                          int32_t ranks_per_node) {
  ASSIGN_OR_RETURN(CostProfile profile, ProfileOf(costs));
  ASSIGN_OR_RETURN(const FsdpStep step, ReadFsdpTraceFile(path));
  profile.compute_scale = 1.0;
  if (step.waits_at_launch) {
    profile.host_us_per_kernel = profile.host_us_per_collective = 0.0;
  }
  TracedStep traced;
  traced.options = {.units = WrappingOf(step),
                    .waits_at_launch = step.waits_at_launch,
                    .host_ps_per_launch = step.host_ps_per_collective};
  traced.total_ps = step.total_ps;
  traced.steps = step.steps;
  FsdpGraphOptions options{Stem(path), false, ranks_per_node};
  ASSIGN_OR_RETURN(Input input, InputOfStep(step, options, profile));
  traced.step.push_back(std::move(input));
  const absl::StatusOr<bool> again = GathersAgain(traced.step);
  if (!again.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", again.status().message()));
  }
  if (!*again) return traced;
  options.keeps = true;
  ASSIGN_OR_RETURN(Input kept, InputOfStep(step, options, profile));
  traced.kept.push_back(std::move(kept));
  return traced;
}

}  // namespace bucketd::ctl
