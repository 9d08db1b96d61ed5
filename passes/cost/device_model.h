// What a graph's kernels and messages take on a described machine (tests/data/SCHEMA.md, "Cost
// model"): the figures that a captured-graph file would state.
#pragma once

#include "absl/status/statusor.h"

#include "passes/cost/costs.h"
#include "passes/cost/profile.h"
#include "passes/ir/graph.h"

namespace bucketd {

// A kernel: max(flops / peak, bytes / memory bandwidth) + launch; nothing for whatever neither
// computes nor moves a byte. Attention is taken to be causal: half of its FLOPs. INVALID_ARGUMENT
// if `mesh` lacks a dimension that a group uses, or sizes disagree.
absl::StatusOr<StatedCosts> ModelCosts(const Graph& graph, const Mesh& mesh,
                                       const DeviceModel& device);

}  // namespace bucketd
