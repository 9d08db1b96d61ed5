#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/pass/constraints.h"
#include "passes/pass/numerics.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "passes/text/bir.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Bucketing, T4_4_LayerOneIsNotLayerTen) {
  const Graph graph = Gathers(
      {"layers.1.a.weight", "layers.1.b.weight", "layers.10.a.weight", "layers.10.b.weight"});
  const Plan plan = Planned(graph, Manual("layers.1,layers.10"));
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_THAT(Members(graph, plan.buckets[0]),
              ElementsAre("AG_layers.1.a.weight", "AG_layers.1.b.weight"));
  EXPECT_THAT(Members(graph, plan.buckets[1]),
              ElementsAre("AG_layers.10.a.weight", "AG_layers.10.b.weight"));
}

TEST(Bucketing, T4_5_AnUnknownEntryIsNamedWithItsNeighbours) {
  const Graph graph = Gathers({"layers.0.a.weight", "layers.0.b.weight", "layers.1.a.weight"});
  PlanOptions options = Manual("layers.0,layers.nope");
  const Plan plan = Planned(graph, options);
  EXPECT_EQ(plan.buckets.size(), 1u);
  EXPECT_THAT(DiagnosticText(plan, "unknown-entry"), HasSubstr("layers.nope"));
  EXPECT_THAT(DiagnosticText(plan, "unknown-entry"), HasSubstr("layers.0, layers.1"));
  options.strict_coverage = true;
  const absl::Status strict = TryPlan(graph, options).status();
  EXPECT_EQ(strict.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(strict.message()), HasSubstr("layers.nope"));
}

TEST(Bucketing, T4_6_AnEntryInsideAnotherIsAnError) {
  const absl::Status status = TryPlan(Forward(2, 2), Manual("layers.0,layers.0.lin1")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers.0.lin1"));
}

TEST(Bucketing, T4_7_TwoGroupsInOneEntryGiveTwoBucketsAndBothMove) {
  Net net;
  const GroupId experts = net.AddGroup("efsdp", 4);
  NodeId h = net.Input("x", {64, 64});
  for (int i = 0; i < 2; ++i) {
    net.In(absl::StrCat("layers.", i));
    std::vector<NodeId> inputs = {h};
    for (int j = 0; j < 4; ++j) {
      const NodeId p = net.Parameter(absl::StrCat("layers.", i, ".w", j), {8, 64});
      net.OnGroup(j < 2 ? 0 : experts);
      inputs.push_back(net.Gather(absl::StrCat(i, j), p));
    }
    h = net.Call(absl::StrCat("mm", i), inputs, {64, 64});
  }
  net.Out(h, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Manual("layers.[0-1]"));
  EXPECT_EQ(plan.buckets.size(), 4u);
  EXPECT_EQ(Text(graph, plan), "AG0 AG0 AG1 AG1 W0 W0 mm0 W1 W1 mm1");
}

// Two layers with two gradients each, reduced as DDP does.
Graph Replicated() {
  Net net;
  NodeId h = net.Input("g", {64, 64}, Role::kTangent);
  for (int i = 1; i >= 0; --i) {
    for (int j = 0; j < 2; ++j) {
      net.In(absl::StrCat("layers.", i));
      h = net.Call(absl::StrCat("mm", i, j), {h}, {64, 64});
      net.Out(net.Reduce(absl::StrCat(i, j), h), SlotKind::kParameterGradient,
              absl::StrCat("layers.", i, ".w", j));
    }
  }
  return net.Build();
}

TEST(Bucketing, T4_8_SwitchedOffAllReducesAreUntouched) {
  const Graph graph = Replicated();
  PlanOptions options = Manual("layers.[0-1]");
  options.bucket_all_reduce = false;
  for (const Numerics numerics : {Numerics::kEagerOrder, Numerics::kFree}) {
    options.numerics = numerics;
    const Plan plan = Planned(graph, options);
    EXPECT_THAT(plan.buckets, IsEmpty());
    EXPECT_EQ(plan.order, ProgramOrder(graph).order);
    EXPECT_THAT(DiagnosticText(plan, "all-reduce-unmerged"), HasSubstr("4 all-reduces"));
  }
}

TEST(Bucketing, T4_8_ExactAllReducesStayAloneAndAreWaitedForLate) {
  const Graph graph = Replicated();
  PlanOptions options = Manual("layers.[0-1]");
  options.numerics = Numerics::kExact;
  const Plan plan = Planned(graph, options);
  EXPECT_THAT(plan.buckets, IsEmpty());
  EXPECT_EQ(Text(graph, plan), "mm10 AR10 mm11 AR11 mm00 AR00 mm01 AR01 WA10 WA11 WA00 WA01");
  EXPECT_THAT(DiagnosticText(plan, "all-reduce-unmerged"), HasSubstr("4 all-reduces"));
}

TEST(Bucketing, AllReducesOfAUnitMergeByDefault) {
  const Graph graph = Replicated();
  const Plan plan = Planned(graph, Manual("layers.[0-1]"));
  EXPECT_EQ(Text(graph, plan), "mm10 mm11 AR1 mm00 mm01 AR0 WA1 WA0");
  EXPECT_FALSE(HasDiagnostic(plan, "all-reduce-unmerged"));
}

TEST(Bucketing, T4_8_HsdpMergesScattersAndLeavesAllReducesWhereSwitchedOff) {
  const CapturedGraph captured = Captured("llama3_debug_hsdp2x4_rsar.bw");
  CostProfile profile;
  const absl::StatusOr<Costs> costs = Costs::FromFile(captured.graph, captured.costs, profile);
  ASSERT_TRUE(costs.ok()) << costs.status();
  PlanOptions options;
  options.mode = "transformer_block";
  options.bucket_all_reduce = false;
  const absl::StatusOr<Plan> plan = MakePlan(captured.graph, *costs, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  size_t scatters = 0, reduces = 0;
  for (const Bucket& bucket : plan->buckets) {
    const Collective& c =
        captured.graph.collective(captured.graph.collective_of(bucket.members[0]));
    EXPECT_NE(c.kind, CollectiveKind::kAllReduce);
    if (c.kind == CollectiveKind::kReduceScatter) ++scatters;
  }
  for (const Step& step : plan->order) {
    if (step.kind != Step::Kind::kNode || captured.graph.kind(step.id) != NodeKind::kCollective) {
      continue;
    }
    const Collective& c = captured.graph.collective(captured.graph.collective_of(step.id));
    if (c.kind == CollectiveKind::kAllReduce) ++reduces;
  }
  EXPECT_GT(scatters, 0u);
  EXPECT_EQ(reduces, 57u) << "one a parameter, as in the graph";
}

TEST(Bucketing, T4_9_AMemberWithoutAPartnerStaysANode) {
  const Graph graph = Gathers({"emb.weight", "layers.0.a", "layers.0.b"});
  const Plan plan = Planned(graph, Manual("emb,layers.0"));
  EXPECT_THAT(BucketNames(plan), ElementsAre("layers.0 forward"));
}

TEST(Bucketing, T4_10_T4_11_WhatIsNoParametersIsUntouched) {
  Net net;
  const NodeId a = net.Input("a", {8, 64}), t = net.Input("t", {64, 64}, Role::kTangent);
  const NodeId p = net.Parameter("layers.0.p", {8, 64}), q = net.Parameter("layers.0.q", {8, 64});
  net.In("layers.0");
  const NodeId w = net.Gather("0", net.Call("add", {a, p}, {8, 64}));
  net.Out(net.Call("mm", {w, net.Gather("1", q)}, {64, 64}), SlotKind::kOutput);
  const NodeId old = net.Input("old", {8, 64});
  net.Out(net.Call("acc", {old, net.Scatter("0", t)}, {8, 64}), SlotKind::kParameterGradient,
          "layers.0.p");
  net.Out(net.Scatter("1", t), SlotKind::kParameterGradient, "layers.0.q");
  const Graph graph = net.Build();
  EXPECT_THAT(Planned(graph, Manual("layers.0")).buckets, IsEmpty());
}

TEST(Bucketing, T4_19_WhatNoEntryHoldsIsNamed) {
  const Graph graph = Gathers({"layers.0.a", "layers.0.b", "norm.weight"});
  PlanOptions options = Manual("layers.0");
  EXPECT_THAT(DiagnosticText(Planned(graph, options), "uncovered-collective"),
              HasSubstr("norm.weight"));
  options.strict_coverage = true;
  EXPECT_THAT(std::string(TryPlan(graph, options).status().message()), HasSubstr("norm.weight"));
}

TEST(Bucketing, T4_19_A5_BucketsAndDiagnosticsSpeakOfRegions) {
  const Graph graph = Gathers({"layers.0.a", "layers.1.a", "norm.weight"});
  PlanOptions options = Manual("body:layers.*,tail:norm+head");
  const Plan plan = Planned(graph, options);
  EXPECT_THAT(BucketNames(plan), ElementsAre("body forward"));
  EXPECT_THAT(DiagnosticText(plan, "unknown-entry"), HasSubstr("entry tail"));
  options.strict_coverage = true;
  EXPECT_THAT(std::string(TryPlan(graph, options).status().message()), HasSubstr("entry tail"));
  options.buckets = "body:layers.*,tail:norm";
  options.reorder = "body:0";
  EXPECT_TRUE(TryPlan(graph, options).ok()) << "reorder speaks of regions, too";
  EXPECT_FALSE(HasDiagnostic(Planned(graph, options), "unknown-reorder-entry"));
}

TEST(Bucketing, T4_15_AnEntryMayTouchTwoLayers) {
  const Graph graph = Gathers({"layers.0.a", "layers.1.a"});
  EXPECT_THAT(BucketNames(Planned(graph, Manual("layers.0+layers.1"))),
              ElementsAre("layers.0+layers.1 forward"));
}

TEST(Bucketing, ALoneBlockIsTakenAndNamed) {
  const Graph graph = Gathers({"layers.5.a", "layers.5.b"});
  const Plan plan = Planned(graph, TransformerBlock());
  EXPECT_THAT(BucketNames(plan), ElementsAre("layers.5 forward"));
  EXPECT_THAT(DiagnosticText(plan, "lone-block"), HasSubstr("layers.5"));
  EXPECT_FALSE(HasDiagnostic(Planned(Forward(2, 2), TransformerBlock()), "lone-block"));
}

TEST(Bucketing, AnEntryWithoutACollectiveIsNamed) {
  const Plan plan = Planned(Gathers({"layers.0.a", "layers.0.b"}), Manual("layers.0"));
  EXPECT_FALSE(HasDiagnostic(plan, "entry-without-collective"));
  Net net;
  net.In("loss");
  const NodeId x = net.Call("relu", {net.Input("x", {8, 8})}, {8, 8});
  net.In("layers.0").Out(x, SlotKind::kOutput);
  net.Out(net.Gather("0", net.Parameter("layers.0.a", {8, 8})), SlotKind::kOutput);
  EXPECT_THAT(
      DiagnosticText(Planned(net.Build(), Manual("layers.0,loss")), "entry-without-collective"),
      HasSubstr("loss"));
}

TEST(Bucketing, KindsDtypesReduceOpsAndLanesStayApart) {
  Net net;
  const GroupId lane = net.AddGroup("dp", 8, 1);
  const NodeId t = net.Input("t", {64, 64}, Role::kTangent);
  net.In("layers.0");
  std::vector<NodeId> gathered;
  int n = 0;
  const auto gather = [&] {
    const std::string name = absl::StrCat(n++);
    gathered.push_back(net.Gather(name, net.Parameter("layers.0.g" + name, {8, 64})));
  };
  const auto scatter = [&](ReduceOp op) {
    const std::string name = absl::StrCat(n++);
    net.Out(net.Scatter(name, t, op), SlotKind::kParameterGradient, "layers.0.s" + name);
  };
  for (int twice = 0; twice < 2; ++twice) {
    gather();
    net.Typed(DType::kF32);
    gather();
    net.Typed(DType::kBF16).OnGroup(lane);
    gather();
    net.OnGroup(0);
    scatter(ReduceOp::kAvg);
    scatter(ReduceOp::kSum);
  }
  net.Out(net.Call("mm", gathered, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Manual("layers.0"));
  EXPECT_EQ(plan.buckets.size(), 5u);
  for (const Bucket& bucket : plan.buckets) EXPECT_EQ(bucket.members.size(), 2u);
}

// What the verifier says to program order with the first two collectives as one bucket, at the
// second one's place.
std::string MergeFirstTwo(const Graph& graph) {
  Plan plan = ProgramOrder(graph);
  Bucket bucket;
  for (CollectiveId c = 0; c < 2; ++c) bucket.members.push_back(graph.collective(c).start);
  plan.buckets.push_back(bucket);
  plan.order.clear();
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (n == bucket.members[1]) {
      plan.order.push_back({Step::Kind::kStart, 0});
      plan.order.push_back({Step::Kind::kWait, 0});
    }
    if (graph.collective_of(n) < 0) plan.order.push_back({Step::Kind::kNode, n});
  }
  return std::string(VerifyPlan(graph, plan).message());
}

TEST(Bucketing, T1_12_T7_6_AskingToMergeAStartWithASecondReaderIsAnError) {
  Net net;
  const NodeId a =
      net.Start(CollectiveKind::kAllGather, "AGa", net.Parameter("layers.0.a", {8, 64}));
  const NodeId peek = net.View("peek", a);
  const NodeId wait = net.Wait("Wa", a);
  const NodeId b = net.Gather("b", net.Parameter("layers.0.b", {8, 64}));
  net.Out(net.Call("mm", {wait, b, peek}, {64, 64}), SlotKind::kOutput);
  EXPECT_THAT(MergeFirstTwo(net.Build()), HasSubstr("(peek) reads"));
}

TEST(Bucketing, T7_5_AskingToMergeSumsWithAveragesIsAnError) {
  Net net;
  const NodeId g = net.Input("g", {64, 64}, Role::kTangent);
  net.Out(net.Scatter("a", g, ReduceOp::kSum), SlotKind::kParameterGradient, "layers.0.a");
  net.Out(net.Scatter("b", g, ReduceOp::kAvg), SlotKind::kParameterGradient, "layers.0.b");
  EXPECT_THAT(MergeFirstTwo(net.Build()), HasSubstr("reduce op"));
}

// Of the first collective of these nodes, which begin with a parameter %p and an input %x.
bool MayJoin(absl::string_view nodes) {
  const auto bir =
      ParseBir(absl::StrCat("graph @g forward mesh(dp=4) {\n  %p = param(w) : f32[4]\n",
                            "  %x = input : f32[4]\n", nodes, "}\n"));
  EXPECT_TRUE(bir.ok()) << bir.status();
  const Costs costs = CostsOf(bir->graph);
  const PlanOptions options;
  PassContext context(bir->graph, costs, options);
  context.constraints = *FindConstraints(bir->graph);
  return MayJoinBucket(context, 0);
}

TEST(Bucketing, ABucketTakesWhatHasAResultOfItsOwnBehindOneWait) {
  EXPECT_TRUE(MayJoin("%g = all_gather(%p)\n %w = wait(%g)\n return %w\n"));
  EXPECT_FALSE(MayJoin("%g = all_gather(%p)\n %w = relu(%g)\n return %w\n"));
  EXPECT_FALSE(MayJoin("%g = all_gather(%p)\n %w = wait(%g)\n %y = relu(%g)\n return %w, %y\n"));
  EXPECT_FALSE(MayJoin("%g = all_gather(%p, %x)\n %w = wait(%g)\n return %w\n"));
  EXPECT_FALSE(MayJoin("%g = all_gather(%p) alias(%x)\n %w = wait(%g)\n return %w\n"));
  EXPECT_FALSE(MayJoin("%g = all_gather(%p)\n %w = wait(%g) alias()\n return %w\n"));
  EXPECT_FALSE(MayJoin("%g = all_gather(%p)\n %w = wait(%g) alias(%g, %x)\n return %w\n"));
  EXPECT_FALSE(
      MayJoin("%g = all_gather(%p)\n %w = wait(%g)\n %y = add_(%p, %x) mutates(%p)\n"
              " return %w, %y\n"));
  EXPECT_FALSE(MayJoin("%g = all_to_all(%p)\n %w = wait(%g)\n return %w\n"));
}

TEST(Bucketing, DoesNotMergeAcrossADependency) {
  // The second gather is computed from the first.
  Net net;
  const NodeId p = net.Parameter("layers.0.a", {8, 64});
  net.In("layers.0");
  const NodeId first = net.Gather("0", p);
  const NodeId second = net.Gather("1", first);
  const NodeId third = net.Gather("2", net.Parameter("layers.0.b", {8, 64}));
  net.Out(second, SlotKind::kOutput);
  net.Out(third, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Manual("layers.0"));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_THAT(Members(graph, plan.buckets[0]), ElementsAre("AG0", "AG2"));
}

TEST(Bucketing, TwoUnitsThatDependOnEachOtherBothWaysStillHaveAnOrder) {
  // b1 follows a1, and a2 follows b2: merging {a1, a2} and {b1, b2} would make a cycle.
  Net net;
  const NodeId p = net.Parameter("a.w1", {8, 64}), q = net.Parameter("b.w2", {8, 64});
  const auto gather = [&](std::string name, NodeId input) {
    const std::string fqn = absl::StrCat(name.substr(0, 1), ".w", name.substr(1));
    return net.Wait("W" + name, net.Tagged(Tag::kFsdpAllGather, fqn, CollectiveKind::kAllGather,
                                           "AG" + name, input, ReduceOp::kNone));
  };
  const NodeId a1 = gather("a1", p), b2 = gather("b2", q);
  net.Out(gather("a2", b2), SlotKind::kOutput);
  net.Out(gather("b1", a1), SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_THAT(Planned(graph, Manual("a,b")).buckets, IsEmpty());
  EXPECT_THAT(BucketNames(Planned(graph, Manual("a+b"))),
              ElementsAre("a+b forward", "a+b forward"));
}

TEST(Bucketing, AGatherBehindAScatterStaysAlone) {
  Net net;
  const NodeId t = net.Input("t", {64, 64}, Role::kTangent);
  net.In("layers.0");
  const auto tagged = [&](Tag tag, CollectiveKind kind, std::string name, NodeId input,
                          ReduceOp op) {
    return net.Wait("W_" + name, net.Tagged(tag, "layers.0." + name, kind, name, input, op));
  };
  const NodeId rs =
      tagged(Tag::kFsdpReduceScatter, CollectiveKind::kReduceScatter, "r0", t, ReduceOp::kSum);
  const NodeId ag =
      tagged(Tag::kFsdpAllGather, CollectiveKind::kAllGather, "g0", rs, ReduceOp::kNone);
  const NodeId other = tagged(Tag::kFsdpAllGather, CollectiveKind::kAllGather, "g1",
                              net.Parameter("layers.0.g1", {8, 64}), ReduceOp::kNone);
  const NodeId last = tagged(Tag::kFsdpReduceScatter, CollectiveKind::kReduceScatter, "r1",
                             net.Call("mm", {other, t}, {64, 64}), ReduceOp::kSum);
  for (const NodeId n : {ag, last}) net.Out(n, SlotKind::kParameterGradient, "layers.0.g0");
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Manual("layers.0"));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_THAT(Members(graph, plan.buckets[0]), ElementsAre("r0", "r1"));
  EXPECT_TRUE(HasDiagnostic(plan, "dependent-collective"));
}

}  // namespace
}  // namespace bucketd::testing
