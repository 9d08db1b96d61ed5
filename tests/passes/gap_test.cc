// Where a plan's time above the bound goes: parts that sum up, and plans with one fault each.
#include "passes/sim/gap.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

#include "passes/io/profile_json.h"
#include "passes/modes/pass_registry.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "passes/sim/auto_report.h"
#include "passes/sim/simulator.h"
#include "tests/passes/ladder.h"
#include "tests/passes/tiny_steps.h"

namespace bucketd::testing {
namespace {

int64_t SumOf(const Gap& gap) {
  int64_t sum = 0;
  for (const auto& [name, ps] : gap.Causes()) {
    EXPECT_GE(ps, 0) << name;
    sum += ps;
  }
  return sum;
}

TEST(Gap, ItsPartsSumUpForEveryModeOfEveryCapturedGraph) {
  for (const std::string& name : CapturedNames()) {
    const CapturedGraph captured = Captured(name);
    for (const CostProfile& profile : Ladder(BuiltInProfiles())) {
      if (captured.graph.size() > 5000 && profile.name != "h100_launch") continue;  // time
      const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
      ASSERT_TRUE(costs.ok()) << costs.status();
      const SharpBound bound = SharpBoundOf(captured.graph, *costs);
      for (const char* const mode : {"none", "transformer_block", "auto"}) {
        PlanOptions options;
        options.mode = mode;
        options.numerics = Numerics::kFree;
        options.effort = 0;
        const absl::StatusOr<Plan> plan = MakePlan(captured.graph, *costs, options);
        if (!plan.ok()) continue;
        const std::optional<AutoReport> report = ReportOf(*plan);
        EXPECT_EQ(report.has_value(),
                  std::string(mode) == "auto" && !captured.graph.collectives().empty());
        const int64_t total = plan->prediction.total_ps;
        const Gap gap = GapOf(captured.graph, *plan, *costs, bound,
                              report.has_value() ? report->fastest_ps : total);
        EXPECT_EQ(gap.total, total - bound.total_ps) << name << " " << profile.name << " " << mode;
        EXPECT_EQ(SumOf(gap), gap.total) << name << " " << profile.name << " " << mode;
      }
    }
  }
}

TEST(Gap, ItsPartsSumUpOnTinySteps) {
  for (uint32_t seed = 0; seed < Seeds(200); ++seed) {
    for (size_t kind = 0; kind < kTinyKinds.size(); ++kind) {
      TinyStep step(kind, seed);
      const Graph graph = step.Build();
      const Costs costs = step.CostsOf(graph);
      const SharpBound bound = SharpBoundOf(graph, costs);
      const Plan plan = ProgramOrder(graph);
      const int64_t total = Simulate(graph, plan, costs).prediction.total_ps;
      const Gap gap = GapOf(graph, plan, costs, bound, total - seed % 3);
      EXPECT_EQ(SumOf(gap), total - bound.total_ps) << kTinyKinds[kind] << " seed " << seed;
    }
  }
}

// In-place and ordered ops, views, waits with several users and with none, two groups.
TEST(Gap, ItsPartsSumUpAndNoPlanIsFasterThanTheBoundOnRandomSteps) {
  for (uint32_t seed = 0; seed < Seeds(300); ++seed) {
    const Graph graph = RandomStep(seed).Build(seed % 10 != 9);
    const Costs costs = CostsOf(graph);
    const SharpBound bound = SharpBoundOf(graph, costs);
    for (const char* const mode : {"none", "greedy", "auto"}) {
      PlanOptions options;
      options.mode = mode;
      options.numerics = Numerics::kFree;
      options.effort = 2;
      options.memory_limit_ppm = 2'000'000;
      const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
      if (!plan.ok()) continue;
      const int64_t total = plan->prediction.total_ps;
      ASSERT_LE(bound.total_ps, total) << "seed " << seed << " " << mode;
      const Gap gap = GapOf(graph, *plan, costs, bound, total);
      ASSERT_EQ(SumOf(gap), total - bound.total_ps) << "seed " << seed << " " << mode;
    }
  }
}

// Kernels take 10 us each, collectives 5 us and 1 us for every KiB.
class Planted {
 public:
  Net net;
  CostProfile profile;

  Planted() { profile.overlap_slowdown = profile.gamma_us = profile.copy_launch_us = 0.0; }
  NodeId Kernel(const std::string& name, std::vector<NodeId> inputs) {
    return net.Call(name, std::move(inputs), {8, 64});
  }
  NodeId Gather(const std::string& name) {  // of 1 KiB
    return net.Gather(name, net.Parameter(name + ".weight", {1, 64}));
  }

  // Plans in the order of these words, nodes by name, "start" and "wait" of one bucket of all
  // collectives whose names have a dot. Names the only cause of the gap, with its microseconds.
  std::string CauseOf(const std::vector<std::string>& words, BucketMode mode) {
    const Graph graph = net.Build();
    StatedCosts stated;
    for (NodeId n = 0; n < graph.size(); ++n) {
      stated.node_us.push_back(graph.kind(n) == NodeKind::kCall ? 10.0 : 0.0);
    }
    for (const Collective& c : graph.collectives()) {
      stated.links.push_back({5.0, 1024e6 * WireFactor(c.kind, 8), false});
    }
    const absl::StatusOr<Costs> costs = Costs::FromFile(graph, stated, profile);
    EXPECT_TRUE(costs.ok()) << costs.status();
    const Plan plan = PlanOf(graph, words, mode);
    EXPECT_TRUE(VerifyPlan(graph, plan).ok()) << VerifyPlan(graph, plan);
    const int64_t total = Simulate(graph, plan, *costs).prediction.total_ps;
    const Gap gap = GapOf(graph, plan, *costs, SharpBoundOf(graph, *costs), total);
    EXPECT_EQ(SumOf(gap), gap.total);
    const auto causes = gap.Causes();
    // Roundings are a picosecond a collective.
    EXPECT_LE(causes[1].second, 10) << causes[1].first << " besides " << causes[0].first;
    return absl::StrCat(causes[0].first, " ", (causes[0].second + 500'000) / 1'000'000);
  }

 private:
  static Plan PlanOf(const Graph& graph, const std::vector<std::string>& words, BucketMode mode) {
    Plan plan = ProgramOrder(graph);
    plan.order.clear();
    Bucket bucket;
    bucket.mode = mode;
    std::vector<bool> placed(static_cast<size_t>(graph.size()), false);
    const auto place = [&](NodeId n) {
      placed[static_cast<size_t>(n)] = true;
      plan.order.push_back({Step::Kind::kNode, n});
    };
    for (NodeId n = 0; n < graph.size(); ++n) {
      if (graph.kind(n) == NodeKind::kPlaceholder) place(n);
      const CollectiveId c = graph.collective_of(n);
      const bool bucketed =
          c >= 0 && absl::StrContains(graph.node_name(graph.collective(c).start), ".");
      if (bucketed && n == graph.collective(c).start) bucket.members.push_back(n);
    }
    for (const std::string& word : words) {
      if (word == "start" || word == "wait") {
        plan.order.push_back({word == "start" ? Step::Kind::kStart : Step::Kind::kWait, 0});
        continue;
      }
      for (NodeId n = 0; n < graph.size(); ++n) {
        if (graph.node_name(n) == word) place(n);
      }
    }
    place(graph.output_node());
    if (!bucket.members.empty()) {
      LayOut(graph, bucket);
      plan.buckets.push_back(std::move(bucket));
    }
    return plan;
  }
};

TEST(Gap, HeadIsWhatTheFirstKernelWaitsTooLong) {
  Planted p;
  const NodeId x = p.net.Input("x", {8, 64});
  const NodeId a = p.Kernel("a", {x, p.Gather("0.")});
  p.net.Out(p.Kernel("b", {a, p.Gather("1.")}), SlotKind::kOutput);
  EXPECT_EQ(p.CauseOf({"start", "wait", "a", "b"}, BucketMode::kGrouped), "head 1");
}

TEST(Gap, TailIsWhatRunsTooLongBehindTheLastKernel) {
  Planted p;
  const NodeId a = p.Kernel("a", {p.net.Input("x", {8, 64})});
  const NodeId b = p.Kernel("b", {a});
  p.net.Out(p.net.Scatter("0.", a), SlotKind::kOutput);
  p.net.Out(p.net.Scatter("1.", b), SlotKind::kOutput);
  EXPECT_EQ(p.CauseOf({"a", "b", "start", "wait"}, BucketMode::kGrouped), "tail 1");
}

TEST(Gap, WireIsWhatALateLaunchCosts) {
  Planted p;
  const NodeId a = p.Kernel("a", {p.net.Input("x", {8, 64})});
  p.net.Out(p.Kernel("b", {a, p.Gather("0")}), SlotKind::kOutput);
  EXPECT_EQ(p.CauseOf({"a", "AG0", "W0", "b"}, BucketMode::kGrouped), "wire 6");
}

TEST(Gap, CriticalPathIsWhatCouldHaveRunBesideACollective) {
  Planted p;
  const NodeId x = p.net.Input("x", {8, 64});
  const NodeId wait = p.net.Reduce("0", p.Kernel("a", {x}));
  const NodeId filler = p.Kernel("filler", {x});
  p.net.Out(p.Kernel("b", {wait, filler}), SlotKind::kOutput);
  EXPECT_EQ(p.CauseOf({"a", "AR0", "WA0", "filler", "b"}, BucketMode::kGrouped), "critical_path 6");
}

TEST(Gap, WhatNoPlanAvoidsIsNoCause) {
  Planted p;
  const NodeId a = p.Kernel("a", {p.net.Input("x", {8, 64}), p.Gather("0")});
  const NodeId b = p.Kernel("b", {p.net.Reduce("1", a)});
  const NodeId c = p.Kernel("c", {b, p.Gather("2")});
  p.net.Out(p.net.Scatter("3", c), SlotKind::kOutput);
  // Head, path and tail are as short as they can be; one gather is launched late.
  EXPECT_EQ(p.CauseOf({"AG0", "W0", "a", "AR1", "WA1", "b", "AG2", "W2", "c", "RS3", "WR3"},
                      BucketMode::kGrouped),
            "wire 6");
}

TEST(Gap, CopiesAreWhatAPackedBucketCostsOnCompute) {
  Planted p;
  p.profile.copy_launch_us = 4.0;
  p.profile.hbm_bytes_per_s = 1e18;
  const NodeId a = p.Kernel("a", {p.net.Input("x", {8, 64})});
  const NodeId b = p.Kernel("b", {a});
  p.net.Out(p.Kernel("c", {b, p.Gather("0."), p.Gather("1.")}), SlotKind::kOutput);
  EXPECT_EQ(p.CauseOf({"start", "a", "b", "wait", "c"}, BucketMode::kPacked), "copies 8");
}

TEST(Gap, HostIsWhatLaunchesHoldUp) {
  Planted p;
  p.profile.host_us_per_collective = 30.0;
  const NodeId a = p.Kernel("a", {p.net.Input("x", {8, 64})});
  const NodeId b = p.Kernel("b", {a});
  const NodeId c = p.Kernel("c", {b, p.Gather("0")});
  p.net.Out(p.Kernel("d", {c, p.Gather("1")}), SlotKind::kOutput);
  EXPECT_EQ(p.CauseOf({"AG0", "AG1", "a", "b", "W0", "c", "W1", "d"}, BucketMode::kGrouped),
            "host 44");
}

TEST(Gap, MemoryIsWhatAFasterPlanWithMoreMemorySaves) {
  const Graph graph = Forward(3, 2);
  const Costs costs = CostsOf(graph);
  const Plan plan = ProgramOrder(graph);
  const int64_t total = Simulate(graph, plan, costs).prediction.total_ps;
  const SharpBound bound = SharpBoundOf(graph, costs);
  ASSERT_GT(total, bound.total_ps + 1000);
  EXPECT_EQ(GapOf(graph, plan, costs, bound, total - 1000).memory, 1000);
  EXPECT_EQ(GapOf(graph, plan, costs, bound, 0).memory, total - bound.total_ps);
  EXPECT_EQ(GapOf(graph, plan, costs, bound, total).memory, 0);
}

TEST(AutoReport, IsReadBackAndNothingElseIs) {
  Plan plan;
  EXPECT_FALSE(ReportOf(plan).has_value());
  plan.diagnostics.push_back(ToDiagnostic({"greedy", 123, 45}));
  ASSERT_TRUE(ReportOf(plan).has_value());
  EXPECT_EQ(ReportOf(plan)->best_mode, "greedy");
  EXPECT_EQ(ReportOf(plan)->best_mode_ps, 123);
  EXPECT_EQ(ReportOf(plan)->fastest_ps, 45);
  for (const char* const text : {"", "fastest_ps=-1", "fastest_ps=x", "best"}) {
    plan.diagnostics[0].text = text;
    EXPECT_FALSE(ReportOf(plan).has_value()) << text;
  }
}

}  // namespace
}  // namespace bucketd::testing
