// Which sums a merge may change, and where members lie in a bucket.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/pass/numerics.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two reduce-scatters of `elements` per rank each.
Graph Scatters(int64_t rows, int64_t columns) {
  Net net;
  const NodeId t = net.Input("t", {8 * rows, columns}, Role::kTangent);
  net.In("layers.0");
  const NodeId p = net.Parameter("layers.0.p", {8, 64}), q = net.Parameter("layers.0.q", {8, 64});
  net.Out(net.Call("mm", {net.Gather("0", p), net.Gather("1", q)}, {64, 64}), SlotKind::kOutput);
  net.Out(net.Scatter("0", t), SlotKind::kParameterGradient, "layers.0.a");
  net.Out(net.Scatter("1", t), SlotKind::kParameterGradient, "layers.0.b");
  return net.Build();
}

std::vector<std::string> Modes(const Graph& graph, Numerics numerics, std::string backend) {
  PlanOptions options = Manual("layers.0");
  options.numerics = numerics;
  options.backend = std::move(backend);
  std::vector<std::string> modes;
  for (const Bucket& bucket : Planned(graph, options).buckets) {
    const Collective& c = graph.collective(graph.collective_of(bucket.members[0]));
    modes.push_back(absl::StrCat(Name(c.kind), " ", Name(bucket.mode)));
  }
  return modes;
}

TEST(Numerics, EagerOrderAndFreePackEverything) {
  for (const Numerics numerics : {Numerics::kEagerOrder, Numerics::kFree}) {
    for (const char* backend : {"gloo", "nccl"}) {
      EXPECT_THAT(Modes(Scatters(1, 3), numerics, backend),
                  ElementsAre("all_gather packed", "reduce_scatter packed"));
    }
  }
}

TEST(Numerics, ExactOnGlooGroupsScattersWithAnOddCountPerRank) {
  EXPECT_THAT(Modes(Scatters(1, 3), Numerics::kExact, "gloo"),
              ElementsAre("all_gather packed", "reduce_scatter grouped"));
  EXPECT_THAT(Modes(Scatters(2, 3), Numerics::kExact, "gloo"),
              ElementsAre("all_gather packed", "reduce_scatter packed"));
}

// Gloo's chunks are made of segments of at most 1 MiB: above two of them a slice, even is not
// enough.
TEST(Numerics, ExactOnGlooGroupsLargeScattersThatDoNotDivideIntoSegments) {
  // Each member fits (600002 is even), the two together make three segments in bf16.
  EXPECT_THAT(Modes(Scatters(1, 600002), Numerics::kExact, "gloo"),
              ElementsAre("all_gather packed", "reduce_scatter grouped"));
  EXPECT_THAT(Modes(Scatters(1, 600000), Numerics::kExact, "gloo"),
              ElementsAre("all_gather packed", "reduce_scatter packed"));
  EXPECT_THAT(Modes(Scatters(1, 600002), Numerics::kEagerOrder, "gloo"),
              ElementsAre("all_gather packed", "reduce_scatter packed"));
}

Plan Reduced(int64_t rows, Numerics numerics, const char* backend,
             std::vector<std::string> order = {"layers.0.a", "layers.0.b"}) {
  PlanOptions options = Manual("layers.0");
  options.numerics = numerics;
  options.backend = backend;
  options.parameter_order = std::move(order);
  return Planned(Scatters(rows, 3), options);
}

// The block's two gradients are eager's unit and one bucket, whose count is even whatever theirs.
TEST(WhoseBits, OddCountsHaveEagersBitsByItsOrderOrTheUnplannedOnesWhenGrouped) {
  const Plan eager = Reduced(1, Numerics::kEagerOrder, "gloo");
  EXPECT_EQ(eager.bits, Bits::kEager);
  EXPECT_THAT(eager.bits_text, HasSubstr("bits of eager FSDP2 with units layers.0, not of the "
                                         "unplanned graph: bucket layers.0"));
  const Plan exact = Reduced(1, Numerics::kExact, "gloo");
  EXPECT_EQ(exact.bits, Bits::kUnplanned);
  EXPECT_THAT(exact.bits_text, HasSubstr("eager training adds the 2 gradients of layers.0 as one"));
  EXPECT_EQ(Reduced(1, Numerics::kFree, "gloo").bits, Bits::kEager) << "its order all the same";
}

TEST(WhoseBits, WithoutEagersOrderOddBucketsHaveNeithersAndThePlanSaysWhy) {
  Net net;
  const NodeId t = net.Input("t", {8, 3}, Role::kTangent);
  net.In("layers.0");
  for (const char* name : {"a", "b", "c"}) {
    net.Out(net.Scatter(name, t), SlotKind::kParameterGradient, absl::StrCat("layers.0.", name));
  }
  const Graph graph = net.Build();
  PlanOptions options = Manual("layers.0");
  for (const std::vector<std::string>& order :
       {std::vector<std::string>{}, std::vector<std::string>{"layers.0.a"}}) {
    options.parameter_order = order;
    const Plan plan = Planned(graph, options);
    EXPECT_EQ(plan.bits, Bits::kNeither);
    EXPECT_THAT(plan.bits_text, HasSubstr("order in which eager training registers parameters"));
  }
}

TEST(WhoseBits, EvenCountsHaveEverybodysInAnyOrderOnGlooAndEagersOnNccl) {
  EXPECT_EQ(Reduced(2, Numerics::kEagerOrder, "gloo", {}).bits, Bits::kBoth);
  EXPECT_EQ(Reduced(2, Numerics::kExact, "gloo").bits, Bits::kBoth);
  EXPECT_EQ(Reduced(2, Numerics::kEagerOrder, "nccl").bits, Bits::kEager);
  EXPECT_EQ(Reduced(2, Numerics::kExact, "nccl").bits, Bits::kUnplanned);
}

TEST(WhoseBits, BucketsAcrossUnitsHaveNeithers) {
  const Graph graph = Backward(3, 2);
  PlanOptions options = Manual("layers.0+layers.1,layers.2");
  options.backend = "nccl";
  const Plan plan = Planned(graph, options);
  EXPECT_EQ(plan.bits, Bits::kNeither);
  EXPECT_THAT(plan.bits_text, HasSubstr("here they are in bucket layers.0+layers.1 backward of 4"));
}

TEST(WhoseBits, WithoutAReductionEveryBitIsTheUnplannedGraphs) {
  EXPECT_EQ(Planned(Forward(3, 2), TransformerBlock()).bits, Bits::kBoth);
}

TEST(Numerics, ExactOnNcclMergesNoScatterAndSaysSo) {
  EXPECT_THAT(Modes(Scatters(2, 4), Numerics::kExact, "nccl"), ElementsAre("all_gather packed"));
  PlanOptions options = Manual("layers.0");
  options.numerics = Numerics::kExact;
  options.backend = "nccl";
  EXPECT_THAT(DiagnosticText(Planned(Scatters(2, 4), options), "numerics-unmerged"),
              HasSubstr("nccl"));
}

// Two gradients reduced over so many ranks, and two activations.
Graph Reductions(int32_t ranks) {
  Net net;
  const GroupId group = net.AddGroup("replicate", ranks);
  net.In("layers.0").OnGroup(group);
  const NodeId t = net.Input("t", {8, 8}, Role::kTangent);
  for (const char* name : {"a", "b"}) {
    net.Out(net.Reduce(name, t), SlotKind::kParameterGradient, absl::StrCat("layers.0.", name));
    net.Out(net.Reduce(absl::StrCat("x", name), t), SlotKind::kOutput);
  }
  return net.Build();
}

TEST(Numerics, GradientsAllReducesMergeUnlessSumsOfMoreThanTwoRanksMustBeExact) {
  using Starts = std::vector<std::string>;
  const auto may = [](int32_t ranks, Numerics numerics, bool wanted = true) {
    const Graph graph = Reductions(ranks);
    PlanOptions options;
    options.numerics = numerics;
    options.bucket_all_reduce = wanted;
    const Tags tags = DeriveTags(graph);
    Starts starts;
    for (CollectiveId c = 0; c < static_cast<CollectiveId>(graph.collectives().size()); ++c) {
      if (!MayMerge(graph, c, tags, options)) continue;
      starts.emplace_back(graph.node_name(graph.collective(c).start));
    }
    return starts;
  };
  const Starts gradients = {"ARa", "ARb"}, all = {"ARa", "ARxa", "ARb", "ARxb"};
  EXPECT_EQ(may(3, Numerics::kEagerOrder), gradients);
  EXPECT_EQ(may(3, Numerics::kFree), all);
  EXPECT_EQ(may(3, Numerics::kExact), Starts());
  EXPECT_EQ(may(2, Numerics::kExact), gradients);
  EXPECT_EQ(may(2, Numerics::kEagerOrder), gradients);
  for (const Numerics numerics : {Numerics::kEagerOrder, Numerics::kExact, Numerics::kFree}) {
    EXPECT_EQ(may(2, numerics, false), Starts());
  }
}

TEST(Numerics, APlanSaysWhatMergedAllReducesMakeOfSums) {
  PlanOptions options = Manual("layers.0");
  EXPECT_THAT(DiagnosticText(Planned(Reductions(3), options), "all-reduce-merged"),
              HasSubstr("2 all-reduces share buckets"));
  EXPECT_FALSE(HasDiagnostic(Planned(Reductions(2), options), "all-reduce-merged"));
  options.numerics = Numerics::kExact;
  EXPECT_THAT(DiagnosticText(Planned(Reductions(3), options), "all-reduce-unmerged"),
              HasSubstr("2 all-reduces of gradients stay alone: merging them changes sums"));
  const Plan two = Planned(Reductions(2), options);
  EXPECT_EQ(two.buckets.size(), 1u);
  EXPECT_FALSE(HasDiagnostic(two, "all-reduce-unmerged"));
  options.bucket_all_reduce = false;
  EXPECT_THAT(DiagnosticText(Planned(Reductions(2), options), "all-reduce-unmerged"),
              HasSubstr("bucket_all_reduce is off"));
}

TEST(Numerics, ExactPacksScattersOfTwoRanksOnEveryBackend) {
  Net net;
  const NodeId t = net.Input("t", {2, 3}, Role::kTangent);
  net.In("layers.0").OnGroup(net.AddGroup("two", 2));
  net.Out(net.Scatter("0", t), SlotKind::kParameterGradient, "layers.0.a");
  net.Out(net.Scatter("1", t), SlotKind::kParameterGradient, "layers.0.b");
  const Graph graph = net.Build();
  for (const char* backend : {"gloo", "nccl"}) {
    EXPECT_THAT(Modes(graph, Numerics::kExact, backend), ElementsAre("reduce_scatter packed"));
  }
}

// A backward that meets c, b, a, and then gathers of them in another order.
Graph BackwardOfThree() {
  Net net;
  const NodeId t = net.Input("t", {64, 8}, Role::kTangent);
  net.In("layers.0");
  std::vector<NodeId> gathered;
  for (const char* name : {"b", "c", "a"}) {
    const NodeId p = net.Parameter(absl::StrCat("layers.0.", name), {8, 8});
    gathered.push_back(net.Gather(name, p));
  }
  const NodeId h = net.Call("mm", gathered, {64, 8});
  for (const char* name : {"c", "b", "a"}) {
    const NodeId g = net.Call(absl::StrCat("gw", name), {t, h}, {64, 8});
    net.Out(net.Scatter(name, g), SlotKind::kParameterGradient, absl::StrCat("layers.0.", name));
  }
  return net.Build();
}

TEST(Payload, T5_6_RegistrationOrderDecidesAndTheBucketStaysWhereItIs) {
  const Graph graph = BackwardOfThree();
  PlanOptions options = Manual("layers.0");
  options.parameter_order = {"layers.0.a", "layers.0.b", "layers.0.c"};
  const Plan plan = Planned(graph, options);
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_THAT(Members(graph, plan.buckets[0]), ElementsAre("AGa", "AGb", "AGc"));
  EXPECT_THAT(Members(graph, plan.buckets[1]), ElementsAre("RSa", "RSb", "RSc"));
  EXPECT_EQ(Text(graph, plan), "AG0' W0' mm gwc gwb gwa RS0 WR0");
  EXPECT_FALSE(HasDiagnostic(plan, "payload-order-unknown"));
}

TEST(Payload, T5_7_ParametersOfOneModuleFollowRegistrationToo) {
  const Graph graph = Gathers({"layers.0.ff.w1", "layers.0.ff.w3", "layers.0.ff.w2"});
  PlanOptions options = Manual("layers.0");
  options.parameter_order = {"layers.0.ff.w1", "layers.0.ff.w2", "layers.0.ff.w3"};
  EXPECT_THAT(Members(graph, Planned(graph, options).buckets[0]),
              ElementsAre("AG_layers.0.ff.w1", "AG_layers.0.ff.w2", "AG_layers.0.ff.w3"));
}

TEST(Payload, T5_8_UnknownParametersComeLastInGraphOrderAndAreNamed) {
  const Graph graph = Gathers({"layers.0.y", "layers.0.b", "layers.0.x", "layers.0.a"});
  PlanOptions options = Manual("layers.0");
  options.parameter_order = {"layers.0.a", "layers.0.b"};
  const Plan plan = Planned(graph, options);
  EXPECT_THAT(Members(graph, plan.buckets[0]),
              ElementsAre("AG_layers.0.a", "AG_layers.0.b", "AG_layers.0.y", "AG_layers.0.x"));
  EXPECT_THAT(DiagnosticText(plan, "payload-order-unknown"), HasSubstr("AG_layers.0.y"));
}

TEST(Payload, WithoutAnOrderGathersAndScattersOfAUnitStillAgree) {
  const Graph graph = BackwardOfThree();
  const Plan plan = Planned(graph, Manual("layers.0"));
  EXPECT_THAT(Members(graph, plan.buckets[0]), ElementsAre("AGb", "AGc", "AGa"));
  EXPECT_THAT(Members(graph, plan.buckets[1]), ElementsAre("RSb", "RSc", "RSa"));
  EXPECT_THAT(DiagnosticText(plan, "payload-order-unknown"), HasSubstr("no parameter order"));
}

TEST(Payload, T5_3_OffsetsOfAPaddedScatterAreThoseOfEager) {
  // W = 4, gradients of 5x2 (padded to 8x2) and 3 (padded to 4): 4 + 1 elements a rank.
  Net net(4);
  const NodeId g1 = net.Input("g1", {8, 2}, Role::kTangent);
  const NodeId g2 = net.Input("g2", {4}, Role::kTangent);
  net.In("layers.0").Typed(DType::kF32);
  net.Out(net.Scatter("2", net.Call("c2", {g2}, {4})), SlotKind::kParameterGradient, "layers.0.b");
  net.Out(net.Scatter("1", net.Call("c1", {g1}, {8, 2})), SlotKind::kParameterGradient,
          "layers.0.a");
  const Graph graph = net.Build();
  PlanOptions options = Manual("layers.0");
  options.parameter_order = {"layers.0.a", "layers.0.b"};
  const Plan plan = Planned(graph, options);
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_THAT(Members(graph, plan.buckets[0]), ElementsAre("RS1", "RS2"));
  EXPECT_THAT(plan.buckets[0].offsets, ElementsAre(0, 4 * 4));
  EXPECT_EQ(plan.buckets[0].slice_bytes, 5 * 4);
}

TEST(Payload, T5_4_OffsetsOfAGatherAreInsideEachRanksSlice) {
  Net net(2);
  const NodeId a = net.Parameter("layers.0.a", {3, 2}), b = net.Parameter("layers.0.b", {5});
  net.In("layers.0");
  net.Out(net.Gather("a", a), SlotKind::kOutput);
  net.Out(net.Gather("b", b), SlotKind::kOutput);
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Manual("layers.0"));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_THAT(plan.buckets[0].offsets, ElementsAre(0, 6 * 2));
  EXPECT_EQ(plan.buckets[0].slice_bytes, 11 * 2);
  EXPECT_EQ(plan.buckets[0].bytes, 2 * 11 * 2);
}

TEST(Payload, T5_5_AParameterWithoutAGradientShiftsWhatFollows) {
  const auto offset_of_c = [](bool with_b) {
    Net net(4);
    net.In("layers.0").Typed(DType::kF32);
    for (const char* name : {"c", "b", "a"}) {
      if (name[0] == 'b' && !with_b) continue;
      const NodeId g = net.Input(absl::StrCat("g", name), {8, 2}, Role::kTangent);
      net.Out(net.Scatter(name, g), SlotKind::kParameterGradient, absl::StrCat("layers.0.", name));
    }
    const Graph graph = net.Build();
    PlanOptions options = Manual("layers.0");
    options.parameter_order = {"layers.0.a", "layers.0.b", "layers.0.c"};
    return Planned(graph, options).buckets[0].offsets.back();
  };
  EXPECT_EQ(offset_of_c(true), 2 * 16);
  EXPECT_EQ(offset_of_c(false), 16);
}

TEST(Payload, T5_11_GradientsOfTwoDtypesNeverShareAPayload) {
  Net net;
  net.In("layers.0");
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const char* name : {"a", "b"}) {
      const std::string fqn = absl::StrCat("layers.0.", name, ItemSize(dtype));
      const NodeId g = net.Typed(dtype).Input("g" + fqn, {8, 2}, Role::kTangent);
      net.Out(net.Scatter(fqn, g), SlotKind::kParameterGradient, fqn);
    }
  }
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Manual("layers.0"));
  EXPECT_EQ(plan.buckets.size(), 2u);
  Plan mixed = ProgramOrder(graph);
  mixed.buckets.push_back(plan.buckets[0]);
  mixed.buckets[0].members.push_back(plan.buckets[1].members[0]);
  EXPECT_THAT(std::string(VerifyPlan(graph, mixed).message()), HasSubstr("dtype"));
}

TEST(Payload, T5_12_WithTensorParallelTheLocalShapesCount) {
  // 8x2 over tensor parallel 2: the collective of a rank sees 4x2, and 2x2 of it is its shard.
  Net net(2);
  net.In("layers.0");
  for (const char* name : {"a", "b"}) {
    const std::string fqn = absl::StrCat("layers.0.", name);
    net.Out(net.Gather(name, net.Parameter(fqn, {2, 2})), SlotKind::kOutput);
  }
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Manual("layers.0"));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_THAT(plan.buckets[0].offsets, ElementsAre(0, 2 * 2 * 2));
  EXPECT_EQ(plan.buckets[0].bytes, 2 * 4 * 2 * 2) << "two gathered tensors of 4x2";
}

}  // namespace
}  // namespace bucketd::testing
