// Steps with stated times, scheduled by the pass alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/pass.h"
#include "passes/pass/pipeline.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {

// Microseconds by the beginning of a node's name, the longest that fits; everything else takes no
// time. A collective takes its time without any bytes if it is at most `latency_us`, else what is
// beyond that depends on its bytes.
inline Costs Timed(const Graph& graph, const std::map<std::string, double>& us,
                   double latency_us = 0.0) {
  StatedCosts stated;
  for (NodeId n = 0; n < graph.size(); ++n) {
    double time = 0.0;
    for (const auto& [prefix, t] : us) {  // ascending: a longer one comes later
      if (absl::StartsWith(graph.node_name(n), prefix)) time = t;
    }
    if (graph.kind(n) == NodeKind::kCollective) {
      const Collective& c = graph.collective(graph.collective_of(n));
      const double size = graph.group(c).size;
      const double rounds = c.kind == CollectiveKind::kAllReduce ? 2.0 : 1.0;
      const double moved = rounds * (size - 1.0) / size * static_cast<double>(c.bytes);
      const double wire_us = time - std::min(latency_us, time);
      stated.links.push_back({time - wire_us, wire_us > 0.0 ? moved / (wire_us * 1e-6) : 1e30});
      time = 0.0;
    }
    stated.node_us.push_back(time);
  }
  CostProfile profile;
  profile.name = "test";
  profile.gamma_us = 0.0;
  auto costs = Costs::FromFile(graph, stated, profile);
  EXPECT_TRUE(costs.ok()) << costs.status();
  return *std::move(costs);
}

struct Scheduled {
  absl::Status status;
  Plan plan;
  std::vector<LaunchOverlap> overlap;
  Prediction program_order;
};

// Memory as the plan's limit sees it is free unless the options say otherwise.
inline PlanOptions OverlapOptions(bool upstream = false) {
  PlanOptions options;
  options.mode = "overlap";
  options.upstream = upstream;
  options.numerics = Numerics::kFree;
  options.memory_limit_bytes = int64_t{1} << 50;
  return options;
}

inline Scheduled ScheduleStep(const Graph& graph, const Costs& costs, const PlanOptions& options) {
  Scheduled result;
  result.plan = ProgramOrder(graph);
  PassContext context(graph, costs, options);
  context.program_order = Simulate(graph, result.plan, costs).prediction;
  auto pipeline = MakePipeline({"tag-collectives", "schedule-overlap"});
  result.status = pipeline.ok() ? pipeline->Run(context, result.plan) : pipeline.status();
  result.overlap = context.overlap;
  result.program_order = context.program_order;
  return result;
}

// The order as text; the test fails if there is none.
inline std::string OrderOf(const Graph& graph, const Costs& costs, const PlanOptions& options) {
  const Scheduled scheduled = ScheduleStep(graph, costs, options);
  EXPECT_TRUE(scheduled.status.ok()) << scheduled.status;
  return Text(graph, scheduled.plan);
}

// "mm00 mm01": what hides the launch whose start has this name.
inline std::string HiddenBy(const Graph& graph, const Scheduled& scheduled,
                            absl::string_view start) {
  std::string names;
  for (const LaunchOverlap& overlap : scheduled.overlap) {
    if (graph.node_name(graph.collective(overlap.collective).start) != start) continue;
    for (const NodeId n : overlap.hidden_by) {
      names += (names.empty() ? "" : " ") + std::string(graph.node_name(n));
    }
    return names;
  }
  return "no such launch";
}

inline int64_t ExposedPs(const Graph& graph, const Scheduled& scheduled, absl::string_view start) {
  for (const LaunchOverlap& overlap : scheduled.overlap) {
    if (graph.node_name(graph.collective(overlap.collective).start) == start) {
      return overlap.exposed_ps;
    }
  }
  return -1;
}

// Whether one word comes before another in an order's text.
inline bool Before(const std::string& order, const std::string& first, const std::string& second) {
  const std::string padded = " " + order + " ";
  const size_t a = padded.find(" " + first + " "), b = padded.find(" " + second + " ");
  EXPECT_NE(a, std::string::npos) << first << " in " << order;
  EXPECT_NE(b, std::string::npos) << second << " in " << order;
  return a < b;
}

}  // namespace bucketd::testing
