// What a compiler that reorders has to keep so that a plan's communication stays hidden.
#pragma once

#include <vector>

#include "absl/types/span.h"

#include "passes/ir/graph.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd {

struct ControlEdge {
  Step before, after;
  friend bool operator==(const ControlEdge&, const ControlEdge&) = default;
};

// For each launch, in plan order: its start before what hides it, and that before its wait. What
// hides it stands in `overlap`; for a launch that `overlap` does not list, or lists without any, it
// is the compute nodes between its start and its wait, which then keep their order too. Never from
// one collective to another: streams keep these in order. Left out is what data edges and other
// edges of the launch imply, as far as a short search finds out.
//
// REQUIRES: the plan is legal for the graph. O(nodes + edges + what hides launches).
std::vector<ControlEdge> ControlEdges(const Graph& graph, const Plan& plan,
                                      absl::Span<const LaunchOverlap> overlap = {});

}  // namespace bucketd
