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

// What `profile` says of a class of links: its measured row, else the device model with the
// profile's scales. `measured` says which. REQUIRES: profile and class are valid.
StatedCosts::Link LinkUnder(const CostProfile& profile, const LinkClass& of);

// Puts the profile's measured rows into `stated`, which has one link a collective. Collectives over
// a dimension that `mesh` lacks, and classes that were not measured, keep what they have.
void UseMeasuredLinks(const Graph& graph, const Mesh& mesh, const CostProfile& profile,
                      StatedCosts& stated);

}  // namespace bucketd
