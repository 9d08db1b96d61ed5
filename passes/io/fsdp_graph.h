// A step of FSDP2 as a graph: one all-gather a parameter where its unit is used, again in the
// backward, a reduce-scatter where its gradients are there, and one kernel for all that was
// computed between two of FSDP2's marks.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "passes/io/fsdp_trace.h"
#include "passes/io/fx_json.h"

namespace bucketd {

struct FsdpGraphOptions {
  std::string name;
  // Gathered parameters stay for the backward, whatever the step did.
  bool keeps = false;
  int32_t ranks_per_node = 0;  // 0: all on one
};

// Of kind "joint", with the times of kernels and without those of links. A trace has neither names
// of parameters (they are MODULE.p0, MODULE.p1, ...) nor activations: the graph's memory is
// that of gathered parameters and gradients. INVALID_ARGUMENT: absurd sizes.
absl::StatusOr<CapturedGraph> GraphOfFsdpStep(const FsdpStep& step,
                                              const FsdpGraphOptions& options);

// Its wrapping as --buckets takes it: "tok_embeddings,layers.0,norm+output", in order of first
// use. Without the model's own unit, which has no name.
std::string WrappingOf(const FsdpStep& step);

}  // namespace bucketd
