// A step of eager FSDP2 out of a trace of torch.profiler, as what `advise` takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/fsdp_advice.h"

namespace bucketd::ctl {

struct TracedStep {
  StepGraphs step, kept;  // `kept` is empty where the step kept its parameters itself
  AdviceOptions options;  // without a memory limit: how it is wrapped, and how it was launched
  int64_t total_ps = 0;   // as traced
  int32_t steps = 0;      // of the trace, of which this is one
};

// Kernels take what the trace shows, whatever the profile's compute_scale; links what the profile
// says. Where the host waits at each launch, launches take what the trace shows, too.
absl::StatusOr<TracedStep> LoadTracedStep(const std::string& path, const CostFlags& costs,
                                          int32_t ranks_per_node);

}  // namespace bucketd::ctl
