// The predicted step as one picture: a panel a plan, a row a stream, time from left to right on one
// scale.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "passes/ir/graph.h"
#include "passes/plan/plan.h"
#include "passes/sim/simulator.h"

namespace bucketd {

struct TimelinePanel {
  std::string title;
  const Plan* plan = nullptr;              // borrowed
  const Simulation* simulation = nullptr;  // borrowed; with its timeline
};

// A self-contained SVG, 1200 pixels wide. What is narrower than a pixel is drawn together with its
// neighbours, so the size does not grow with the graph.
std::string TimelineSvg(const Graph& graph, absl::Span<const TimelinePanel> panels);

}  // namespace bucketd
