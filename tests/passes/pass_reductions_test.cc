// Chains of gradient reductions, gathers before the first kernel, and memory limits that only
// smaller buckets meet.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/planner.h"
#include "passes/sim/simulator.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

PlanOptions Free(std::string buckets) {
  PlanOptions options = Manual(std::move(buckets));
  options.numerics = Numerics::kFree;
  return options;
}

enum class Chain { kScatterThenReduce, kReduceThenScatter };

// Layers downwards, two gradients each, sharded and replicated.
Graph Hsdp(int layers, Chain chain) {
  Net net;
  const GroupId replicas = net.AddGroup("replicate", 2);
  NodeId h = net.Input("t", {64, 64}, Role::kTangent);
  for (int i = layers - 1; i >= 0; --i) {
    net.In(absl::StrCat("layers.", i));
    for (int j = 0; j < 2; ++j) {
      const std::string name = absl::StrCat(i, j);
      NodeId g = h = net.Call("mm" + name, {h}, {64, 64});
      if (chain == Chain::kReduceThenScatter) g = net.OnGroup(replicas).Reduce(name, g);
      g = net.OnGroup(0).Scatter(name, g);
      if (chain == Chain::kScatterThenReduce) g = net.OnGroup(replicas).Reduce(name, g);
      net.Out(g, SlotKind::kParameterGradient, absl::StrCat("layers.", i, ".w", j));
    }
  }
  net.Out(h, SlotKind::kInputGradient);
  return net.Build();
}

int Count(const Graph& graph, const Plan& plan, CollectiveKind kind) {
  int count = 0;
  for (const Bucket& bucket : plan.buckets) {
    if (graph.collective(graph.collective_of(bucket.members[0])).kind == kind) ++count;
  }
  return count;
}

size_t At(const std::string& text, const std::string& word) {
  const size_t at = absl::StrCat(" ", text, " ").find(absl::StrCat(" ", word, " "));
  EXPECT_NE(at, std::string::npos) << word << " in " << text;
  return at;
}

TEST(Reductions, BothOrdersOfHsdpMergeInBothStages) {
  for (const Chain chain : {Chain::kScatterThenReduce, Chain::kReduceThenScatter}) {
    const Graph graph = Hsdp(3, chain);
    const Plan plan = Planned(graph, Free("layers.[0-2]"));
    EXPECT_EQ(Count(graph, plan, CollectiveKind::kReduceScatter), 3);
    EXPECT_EQ(Count(graph, plan, CollectiveKind::kAllReduce), 3);
    EXPECT_EQ(plan.prediction.collectives, 6);
    const std::string text = Text(graph, plan);
    const bool scatter_first = chain == Chain::kScatterThenReduce;
    const std::string first = scatter_first ? "WR" : "WA", second = scatter_first ? "AR" : "RS";
    for (const char* layer : {"0", "1", "2"}) {
      EXPECT_LT(At(text, first + layer), At(text, second + layer)) << "the graph's own order";
    }
  }
}

TEST(Reductions, TheSecondOfAChainIsWaitedForBehindTheNextUnitsSecond) {
  for (const Chain chain : {Chain::kScatterThenReduce, Chain::kReduceThenScatter}) {
    const Graph graph = Hsdp(3, chain);
    const bool scatter_first = chain == Chain::kScatterThenReduce;
    const std::string start = scatter_first ? "AR" : "RS", wait = scatter_first ? "WA" : "WR";
    std::string text = Text(graph, Planned(graph, Free("layers.[0-2]")));
    EXPECT_LT(At(text, start + "1"), At(text, wait + "2")) << text;
    EXPECT_LT(At(text, start + "0"), At(text, wait + "1")) << text;
    EXPECT_LT(At(text, wait + "1"), At(text, wait + "0")) << text;
    PlanOptions undeferred = Free("layers.[0-2]");
    undeferred.defer_reduce_scatter = 0;
    text = Text(graph, Planned(graph, undeferred));
    EXPECT_GT(At(text, start + "1"), At(text, wait + "2")) << text;
  }
}

TEST(Reductions, AGradientThatIsReducedFirstSharesItsUnitsScatter) {
  // As with tensor parallelism: norms are summed over it before they are scattered.
  Net net;
  const GroupId tensor = net.AddGroup("tp", 2);
  NodeId h = net.Input("t", {64, 64}, Role::kTangent);
  for (int i = 1; i >= 0; --i) {
    net.In(absl::StrCat("layers.", i));
    for (const char* name : {"norm1", "norm2", "w"}) {
      h = net.Call(absl::StrCat("mm", i, name), {h}, {64, 64});
      const std::string fqn = absl::StrCat("layers.", i, ".", name);
      const NodeId g = name[0] == 'n' ? net.OnGroup(tensor).Reduce(absl::StrCat(i, name), h) : h;
      net.Out(net.OnGroup(0).Scatter(absl::StrCat(i, name), g), SlotKind::kParameterGradient, fqn);
    }
  }
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Free("layers.[0-1]"));
  EXPECT_EQ(Count(graph, plan, CollectiveKind::kReduceScatter), 2);
  EXPECT_EQ(Count(graph, plan, CollectiveKind::kAllReduce), 2);
}

TEST(Reductions, ChainsOfBothKindsInOneGraphStillHaveAnOrder) {
  // One gradient is reduced and then scattered, one the other way round, two are either. With one
  // bucket a kind, each would wait for the other.
  Net net;
  const NodeId g = net.Input("g", {64, 64}, Role::kTangent);
  const auto out = [&](NodeId n, const char* fqn) {
    net.Out(n, SlotKind::kParameterGradient, fqn);
  };
  net.In("layers.1");
  const NodeId reduced = net.Reduce("a1", net.Call("mm1", {g}, {64, 64}));
  const NodeId scattered = net.Scatter("b1", net.Call("mm2", {g}, {64, 64}));
  net.In("layers.0");
  out(net.Scatter("a0", reduced), "layers.0.a");
  out(net.Reduce("b0", scattered), "layers.0.b");
  out(net.Scatter("c0", net.Call("mm3", {g}, {64, 64})), "layers.0.c");
  out(net.Reduce("d0", net.Call("mm4", {g}, {64, 64})), "layers.0.d");
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Free("layers.[0-1]"));
  EXPECT_EQ(Count(graph, plan, CollectiveKind::kReduceScatter), 1);
  EXPECT_EQ(Count(graph, plan, CollectiveKind::kAllReduce), 1);
  EXPECT_EQ(plan.prediction.collectives, 4);
}

TEST(Reductions, EveryHsdpAndDdpGraphGetsShorterAndStaysWithinMemory) {
  for (const char* name : {"llama3_debug_hsdp2x4_rsar.bw", "llama3_debug_hsdp2x4_rsar.joint",
                           "llama3_debug_ddp8.bw", "llama3_debug_ddp8.joint"}) {
    const CapturedGraph captured = Captured(name);
    const absl::StatusOr<Costs> costs =
        Costs::FromFile(captured.graph, captured.costs, CostProfile());
    ASSERT_TRUE(costs.ok()) << costs.status();
    int64_t alone = 0;
    for (const Numerics numerics : {Numerics::kExact, Numerics::kEagerOrder}) {
      PlanOptions options = TransformerBlock();
      options.numerics = numerics;
      const absl::StatusOr<Plan> plan = MakePlan(captured.graph, *costs, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_LT(plan->prediction.total_ps, plan->program_order.total_ps) << name;
      EXPECT_LE(plan->prediction.peak_bytes, plan->program_order.peak_bytes / 20 * 21) << name;
      if (numerics == Numerics::kExact) alone = plan->prediction.total_ps;
      if (numerics == Numerics::kEagerOrder) {
        EXPECT_LT(plan->prediction.total_ps, alone) << name;
        EXPECT_LE(plan->prediction.collectives, 24) << "one of a kind for each of eight units";
      }
    }
  }
}

// A kernel that the first gather is not needed for, before it.
Graph WithAKernelBefore(bool joint) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  std::vector<NodeId> p;
  for (int j = 0; j < 4; ++j) {
    p.push_back(net.Parameter(absl::StrCat("layers.", j / 2, ".w", j % 2), {8, 64}));
  }
  net.Going(Direction::kForward);
  NodeId h = net.Call("mmpre", {x}, {64, 64});
  const auto layer = [&](int i, const char* suffix) {
    net.In(absl::StrCat("layers.", i));
    for (int j = 0; j < 2; ++j) {
      const std::string name = absl::StrCat(i, j, suffix);
      h = net.Call("mm" + name, {h, net.Gather(name, p[static_cast<size_t>(2 * i + j)])}, {64, 64});
    }
  };
  layer(0, "");
  layer(1, "");
  net.Out(h, SlotKind::kOutput);
  if (joint) {
    net.Going(Direction::kBackward);
    h = net.Call("mmloss", {h}, {64, 64});
    layer(1, "'");
    layer(0, "'");
    net.Out(net.Scatter("g", h), SlotKind::kParameterGradient, "layers.0.w0");
  }
  return net.Build();
}

TEST(FirstGather, IsIssuedBeforeTheFirstKernelThatItDoesNotNeed) {
  const Graph graph = WithAKernelBefore(false);
  EXPECT_EQ(Text(graph, Planned(graph, Manual("layers.[0-1]"))),
            "AG0 mmpre AG1 W0 mm00 mm01 W1 mm10 mm11");
  PlanOptions options = Manual("layers.[0-1]");
  options.prefetch_forward = 0;
  EXPECT_EQ(Text(graph, Planned(graph, options)), "mmpre AG0 W0 mm00 mm01 AG1 W1 mm10 mm11");
  options.prefetch_forward = 1;
  options.reorder = "layers.1";
  EXPECT_EQ(Text(graph, Planned(graph, options)), "mmpre AG0 AG1 W0 mm00 mm01 W1 mm10 mm11")
      << "a unit that is not selected stays";
}

TEST(FirstGather, OfTheBackwardNeverGoesIntoTheForward) {
  const Graph graph = WithAKernelBefore(true);
  const std::string text = Text(graph, Planned(graph, Manual("layers.[0-1]")));
  EXPECT_LT(At(text, "AG0"), At(text, "mmpre"));
  EXPECT_GT(At(text, "AG1'"), At(text, "mm11"));
  EXPECT_LT(At(text, "AG1'"), At(text, "mmloss"));
}

TEST(FirstGather, StaysWhereMemoryDoesNotAllowIt) {
  // What is live before the first gather is most of the step's memory.
  Net net;
  NodeId h = net.Input("x", {64, 64});
  const NodeId a = net.Parameter("layers.0.a", {8, 512}), b = net.Parameter("layers.0.b", {8, 512});
  net.In("layers.0");
  const NodeId wide = net.Call("mmwide", {h}, {4096, 64});
  h = net.Call("mmnarrow", {wide}, {64, 64});
  net.Out(net.Call("mm", {h, net.Gather("a", a), net.Gather("b", b)}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  PlanOptions options = Manual("layers.0");
  EXPECT_EQ(Text(graph, Planned(graph, options)), "AG0 mmwide mmnarrow W0 mm");
  options.memory_limit_bytes = 0;
  options.memory_limit_ppm = 1'000'000;
  const Plan tight = Planned(graph, options);
  EXPECT_EQ(Text(graph, tight), "mmwide mmnarrow AG0 W0 mm");
  EXPECT_LE(tight.prediction.peak_bytes, tight.program_order.peak_bytes);
  EXPECT_FALSE(HasDiagnostic(tight, "prefetch-reduced")) << "it was no distance that was asked for";
}

// Gathers that are needed one after the other: together they need more than apart.
Graph OneAfterTheOther(int count) {
  Net net;
  NodeId h = net.Input("x", {64, 64});
  net.In("layers.0");
  for (int j = 0; j < count; ++j) {
    const NodeId p = net.Parameter(absl::StrCat("layers.0.w", j), {8, 512});
    h = net.Call(absl::StrCat("mm", j), {h, net.Gather(absl::StrCat(j), p)}, {64, 64});
  }
  net.Out(h, SlotKind::kOutput);
  return net.Build();
}

TEST(Memory, BucketsAreSplitToMeetALimitWhereBitsAllowIt) {
  const Graph graph = OneAfterTheOther(8);
  PlanOptions options = Manual("layers.0");
  options.memory_limit_bytes = 0;
  options.memory_limit_ppm = 5'000'000;
  const Plan eager = Planned(graph, options);
  EXPECT_EQ(eager.buckets.size(), 1u);
  EXPECT_TRUE(HasDiagnostic(eager, "memory-limit"));
  for (const Numerics numerics : {Numerics::kFree, Numerics::kExact}) {
    options.numerics = numerics;
    const Plan split = Planned(graph, options);
    EXPECT_LE(split.prediction.peak_bytes, 5 * split.program_order.peak_bytes);
    EXPECT_GT(split.buckets.size(), 1u);
    EXPECT_FALSE(HasDiagnostic(split, "memory-limit"));
    EXPECT_THAT(DiagnosticText(split, "buckets-split"), HasSubstr("1 buckets became"));
    EXPECT_EQ(Text(graph, split), Text(graph, Planned(graph, options))) << "every time the same";
  }
}

TEST(Memory, ALimitThatOnlyProgramOrderMeetsLeavesNoBucket) {
  const Graph graph = OneAfterTheOther(4);
  PlanOptions options = Free("layers.0");
  options.memory_limit_bytes = 0;
  options.memory_limit_ppm = 1'000'000;
  const Plan plan = Planned(graph, options);
  EXPECT_THAT(plan.buckets, IsEmpty());
  EXPECT_LE(plan.prediction.peak_bytes, plan.program_order.peak_bytes);
  EXPECT_FALSE(HasDiagnostic(plan, "memory-limit"));
}

TEST(Lanes, T4_21_GathersOnATwinGroupRunBesideScatters) {
  const auto planned = [](int32_t lane) {
    Net net;
    const GroupId gathers = net.AddGroup("dp", 8, 1);
    const NodeId g = net.Input("g", {4096, 64}, Role::kTangent);
    const NodeId p = net.Parameter("layers.0.w", {512, 64});
    net.In("layers.0");
    const NodeId scatter = net.Start(CollectiveKind::kReduceScatter, "RS", g, ReduceOp::kAvg);
    if (lane == 1) net.OnGroup(gathers);
    const NodeId gather = net.Start(CollectiveKind::kAllGather, "AG", p);
    net.Out(net.OnGroup(0).Wait("WR", scatter), SlotKind::kParameterGradient, "layers.0.v");
    net.Out(net.Wait("W", gather), SlotKind::kOutput);
    const Graph graph = net.Build();
    return Simulate(graph, ProgramOrder(graph), CostsOf(graph), true);
  };
  const auto wires = [](const Simulation& simulation) {
    std::vector<TimelineEvent> events;
    for (const TimelineEvent& event : simulation.events) {
      if (event.kind == TimelineEvent::Kind::kCollective) events.push_back(event);
    }
    return events;
  };
  const std::vector<TimelineEvent> one = wires(planned(0)), two = wires(planned(1));
  ASSERT_EQ(one.size(), 2u);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(one[0].group, one[1].group);
  EXPECT_GE(one[1].start_ps, one[0].end_ps) << "one stream: first in, first out";
  EXPECT_NE(two[0].group, two[1].group);
  EXPECT_LT(two[1].start_ps, two[0].end_ps);
}

}  // namespace
}  // namespace bucketd::testing
