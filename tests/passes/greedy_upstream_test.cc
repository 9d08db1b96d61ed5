// Where the defaults leave torch 2.13 and AutoParallel, both sides.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/cost/saturation.h"
#include "passes/pass/upstream/torch_greedy.h"
#include "tests/passes/greedy_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PlanOptions Upstream(std::vector<int64_t> caps, int32_t span = kNoLimit) {
  PlanOptions options = GreedyOptions(std::move(caps), span);
  options.upstream = true;
  return options;
}

Graph KeysAABAA() {
  Net net;
  std::vector<NodeId> waits;
  for (const std::string name : {"A1", "A2", "B", "A3", "A4"}) {
    net.Typed(name == "B" ? DType::kF32 : DType::kBF16);
    waits.push_back(net.Gather(name, net.Parameter(name, {2, 32})));
  }
  net.Typed(DType::kBF16);
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

TEST(GreedyUpstream, T2_2_TorchEndsARunAtAnotherKey) {
  const Graph graph = KeysAABAA();
  EXPECT_THAT(Buckets(graph, Greedy(graph, Upstream({kMiB}))),
              ElementsAre(ElementsAre("AGA1", "AGA2"), ElementsAre("AGA3", "AGA4")));
  // AutoParallel's does not.
  EXPECT_THAT(Sizes(Greedy(graph, Upstream({kMiB}, 1500))), ElementsAre(4));
}

TEST(GreedyUpstream, AWaitThatIsFilteredOutDoesNotEndARun) {
  Net net;
  std::vector<NodeId> waits;
  for (int i = 0; i < 4; ++i) {
    waits.push_back(net.Gather(absl::StrCat(i), net.Parameter(absl::StrCat("w", i), {2, 32})));
    if (i != 1) continue;
    const NodeId a = net.Input("a", {2, 32}), b = net.Input("b", {2, 32});
    waits.push_back(net.Gather("activation", net.Call("add", {a, b}, {2, 32})));
  }
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kOutput);
  EXPECT_THAT(Sizes(Greedy(net.Build(), Upstream({kMiB}))), ElementsAre(4));
}

Graph SameSize(int count) {
  Net net;
  std::vector<NodeId> waits;
  for (int i = 0; i < count; ++i) {
    waits.push_back(net.Gather(absl::StrCat(i), net.Parameter(absl::StrCat("w", i), {2, 32})));
  }
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

TEST(GreedyUpstream, T3_10_TorchAsksForTheCapOfBucketZeroOnly) {
  EXPECT_THAT(Sizes(Greedy(SameSize(6), Upstream({2 * 1024, 4 * 1024}))), ElementsAre(2, 2, 2));
  EXPECT_THAT(Sizes(Greedy(SameSize(6), Upstream({2 * 1024, 4 * 1024}, 1500))), ElementsAre(2, 4));
}

// All-reduces a1, a2 of one dtype and b1, b2 of another: b1 is computed from a1, a2 from b2.
Graph CrossedReductions() {
  Net net;
  const auto reduce = [&](const std::string& name, NodeId input) {
    const NodeId start = net.Tagged(Tag::kDdpAllReduce, "p." + name, CollectiveKind::kAllReduce,
                                    name, input, ReduceOp::kSum);
    return net.Wait("w_" + name, start);
  };
  const Shape shape = {64, 64};
  const NodeId x = net.Input("x", shape);
  const NodeId y = net.Typed(DType::kF32).Input("y", shape);
  net.Typed(DType::kBF16);
  const NodeId a1 = reduce("a1", x);
  const NodeId up = net.Typed(DType::kF32).Call("up", {a1}, shape);
  const NodeId b1 = reduce("b1", up), b2 = reduce("b2", y);
  const NodeId down = net.Typed(DType::kBF16).Call("down", {b2}, shape);
  const NodeId a2 = reduce("a2", down);
  net.Out(b1, SlotKind::kParameterGradient, "p.b1");
  net.Out(a2, SlotKind::kParameterGradient, "p.a2");
  return net.Build();
}

TEST(GreedyUpstream, T3_11_BucketsOfTwoKeysMakeNoCycle) {
  const Graph graph = CrossedReductions();
  // Either pair may merge, not both.
  EXPECT_THAT(Buckets(graph, Greedy(graph, GreedyOptions({kMiB}))),
              ElementsAre(ElementsAre("a1", "a2")));
  const absl::Status crossed =
      TryPass("greedy-bucket", graph, CostsOf(graph), Upstream({kMiB}, 1500)).status();
  EXPECT_EQ(crossed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(crossed.message()), HasSubstr("depend on one another"));
  EXPECT_THAT(Buckets(graph, Greedy(graph, Upstream({kMiB}))),
              ElementsAre(ElementsAre("b1", "b2")));
}

// AG2, and AG4 if wanted, depend on AG1; AG3 on nothing.
Graph Dependent(bool with_fourth) {
  Net net;
  const NodeId p1 = net.Parameter("w1", {2, 32}), p3 = net.Parameter("w3", {2, 32});
  const NodeId one = net.Gather("1", p1);
  std::vector<NodeId> waits = {one, net.Gather("2", one), net.Gather("3", p3)};
  if (with_fourth) waits.push_back(net.Gather("4", one));
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

TEST(GreedyUpstream, T3_16_WhatDependsOnAMemberIsDroppedForEver) {
  for (const int32_t span : {kNoLimit, 1500}) {
    EXPECT_THAT(Buckets(Dependent(true), Greedy(Dependent(true), Upstream({kMiB}, span))),
                ElementsAre(ElementsAre("AG1", "AG3")));
  }
  EXPECT_THAT(Sizes(Greedy(Dependent(true), GreedyOptions({kMiB}))), ElementsAre(2, 2));
  EXPECT_THAT(Sizes(Greedy(Dependent(false), GreedyOptions({kMiB}))), ElementsAre(2));
}

// Two all-reduces on dp, two on tp, and `gathers` of parameters on dp.
Graph ReductionsOfTwoGroups(int gathers) {
  Net net;
  const GroupId tp = net.AddGroup("tp", 2);
  std::vector<NodeId> waits;
  for (int i = 0; i < gathers; ++i) {
    waits.push_back(net.Gather(absl::StrCat(i), net.Parameter(absl::StrCat("w", i), {2, 32})));
  }
  for (int i = 0; i < 4; ++i) {
    net.OnGroup(i < 2 ? 0 : tp);
    const NodeId g = net.Input(absl::StrCat("g", i), {64, 64});
    net.Out(net.Reduce(absl::StrCat(i), g), SlotKind::kParameterGradient, absl::StrCat("w", i));
  }
  waits.push_back(net.Input("x", {64, 64}));
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

TEST(GreedyUpstream, T2_9_AllReducesOfOtherGroupsStayBeforeScheduling) {
  const Graph graph = ReductionsOfTwoGroups(2);
  EXPECT_THAT(Buckets(graph, RunPass("pre-bucket", graph, Upstream({kMiB}))),
              ElementsAre(ElementsAre("AG0", "AG1"), ElementsAre("AR0", "AR1")));
  EXPECT_THAT(Sizes(Greedy(graph, Upstream({kMiB}))), ElementsAre(2, 2, 2));
  EXPECT_THAT(Sizes(RunPass("pre-bucket", graph, GreedyOptions({kMiB}))), ElementsAre(2, 2, 2));
}

TEST(GreedyUpstream, T2_11_WithoutAGatherTorchMergesNothingBeforeScheduling) {
  const Graph graph = ReductionsOfTwoGroups(0);
  EXPECT_THAT(Sizes(RunPass("pre-bucket", graph, Upstream({kMiB}))), IsEmpty());
  EXPECT_THAT(Sizes(RunPass("pre-bucket", graph, GreedyOptions({kMiB}))), ElementsAre(2, 2));
}

// A gather on a small group, then three on each of two.
Graph MinorityFirst() {
  Net net;
  const GroupId tp = net.AddGroup("tp", 2);
  std::vector<NodeId> waits;
  for (int i = 0; i < 7; ++i) {
    net.OnGroup(i < 3 ? tp : 0);
    waits.push_back(net.Gather(absl::StrCat(i), net.Parameter(absl::StrCat("w", i), {64, 64})));
  }
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

TEST(GreedyUpstream, TheFirstGroupsSizeDecidesEveryGroupsCap) {
  const Graph graph = MinorityFirst();
  const auto cap = [&](int64_t bytes) { return absl::StrCat("cap ", bytes, " bytes"); };
  const std::string upstream =
      DiagnosticText(RunPass("pre-bucket", graph, Upstream({})), "greedy-summary");
  const int64_t of_two = upstream::TorchAutoCapBytes(2);
  EXPECT_THAT(upstream,
              HasSubstr(absl::StrCat("tp (2 ranks) all_gather bf16: 3 -> 1, ", cap(of_two))));
  EXPECT_THAT(upstream,
              HasSubstr(absl::StrCat("dp (8 ranks) all_gather bf16: 4 -> 1, ", cap(of_two))));
  const Costs costs = CostsOf(graph);
  const std::string own =
      DiagnosticText(RunPass("pre-bucket", graph, GreedyOptions({})), "greedy-summary");
  const int64_t tp = AutoCapBytes(costs, 0), dp = AutoCapBytes(costs, 6);
  ASSERT_NE(tp, dp);
  EXPECT_THAT(own,
              HasSubstr(absl::StrCat("tp (2 ranks) all_gather bf16 forward: 3 -> 1, ", cap(tp))));
  EXPECT_THAT(own,
              HasSubstr(absl::StrCat("dp (8 ranks) all_gather bf16 forward: 4 -> 1, ", cap(dp))));
}

TEST(GreedyUpstream, AutoParallelsPrimaryGroupKeepsNoGatherFromMerging) {
  PlanOptions options = Upstream({kMiB}, 1500);
  options.primary_group_only = true;
  EXPECT_THAT(Sizes(RunPass("pre-bucket", MinorityFirst(), options)), ElementsAre(3, 4));
  options.upstream = false;
  EXPECT_THAT(Sizes(RunPass("pre-bucket", MinorityFirst(), options)), ElementsAre(4));
}

TEST(GreedyUpstream, StructureTakesAnActivationForAParameterAndTagsDoNot) {
  Net net;
  std::vector<NodeId> waits;
  for (int i = 0; i < 2; ++i) {
    const NodeId saved = net.Input(absl::StrCat("saved", i), {2, 32}, Role::kSaved);
    const NodeId relu = net.Call(absl::StrCat("relu", i), {saved}, {2, 32});
    waits.push_back(net.Gather(absl::StrCat(i), relu));
  }
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kInputGradient);
  const Graph graph = net.Build();
  EXPECT_THAT(Sizes(Greedy(graph, Upstream({kMiB}))), ElementsAre(2));
  EXPECT_THAT(Sizes(Greedy(graph, GreedyOptions({kMiB}))), IsEmpty());
}

TEST(GreedyUpstream, TheStableSortPutsUsersBehindTheMergedWait) {
  EXPECT_EQ(Text(Forward(3, 2), Greedy(Forward(3, 2), Upstream({kMiB}))),
            "AG0 W0 mm00 mm01 mm10 mm11 mm20 mm21");
}

TEST(PreBucket, OffLeavesThePlanAlone) {
  PlanOptions options = GreedyOptions({kMiB});
  EXPECT_THAT(Sizes(RunPass("pre-bucket", SameSize(4), options)), ElementsAre(4));
  options.pre_bucketing = false;
  EXPECT_THAT(Sizes(RunPass("pre-bucket", SameSize(4), options)), IsEmpty());
}

}  // namespace
}  // namespace bucketd::testing
