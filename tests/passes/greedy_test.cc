#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/pass/compute_run.h"
#include "passes/pass/greedy/greedy_policy.h"
#include "passes/pass/upstream/torch_greedy.h"
#include "passes/planner.h"
#include "tests/passes/greedy_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Gathered, one of these has 1 KiB.
const Shape kSmall = {2, 32};

// A net of gathers of parameters that are all used at the end.
class Gathers {
 public:
  NodeId Add(const std::string& name, const Shape& shape = kSmall) {
    const NodeId p = net_.Parameter(name, shape);
    return Use(name, p);
  }
  NodeId Use(const std::string& name, NodeId input) {
    waits_.push_back(net_.Gather(name, input));
    return waits_.back();
  }
  void Relus(int count) {
    for (int i = 0; i < count; ++i) {
      relu_ = net_.Call(absl::StrCat("relu", relus_++), {relu_ == kNoNode ? waits_[0] : relu_},
                        net_.shape(waits_[0]));
    }
  }
  Net& net() { return net_; }
  Graph Build() {
    std::vector<NodeId> used = waits_;
    if (relu_ != kNoNode) used.push_back(relu_);
    net_.Out(net_.Call("use", used, {64, 64}), SlotKind::kOutput);
    return net_.Build();
  }

 private:
  Net net_;
  std::vector<NodeId> waits_;
  NodeId relu_ = kNoNode;
  int relus_ = 0;
};

Graph Equal(int count, const Shape& shape = kSmall) {
  Gathers gathers;
  for (int i = 1; i <= count; ++i) gathers.Add(absl::StrCat(i), shape);
  return gathers.Build();
}

// Two of every kind of group: `dp` gathers on dp, then `tp` on tp.
Graph TwoGroups(int dp, int tp) {
  Net net;
  const GroupId second = net.AddGroup("tp", 2);
  std::vector<NodeId> waits;
  for (int i = 0; i < dp + tp; ++i) {
    const NodeId p = net.Parameter(absl::StrCat("w", i), kSmall);
    net.OnGroup(i < dp ? 0 : second);
    waits.push_back(net.Gather(absl::StrCat(i), p));
  }
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

GroupId Primary(const Graph& graph) { return PrimaryGroup(graph, DeriveTags(graph)); }

TEST(PrimaryGroup, T1_13_IsTheGroupWithMostParameterGathers) {
  const Graph graph = TwoGroups(5, 2);
  ASSERT_EQ(Primary(graph), 0);
  EXPECT_EQ(graph.groups()[0].size, 8);
  EXPECT_EQ(Primary(TwoGroups(2, 5)), 1);
  const upstream::Traffic patched = upstream::FindTraffic(graph, true);
  EXPECT_THAT(patched.groups, ElementsAre(0));
  EXPECT_EQ(patched.group_size, 8);
  EXPECT_THAT(upstream::FindTraffic(graph, false).groups, ElementsAre(0, 1));
}

// Gathers on dp, and more reduce-scatters on tp.
TEST(PrimaryGroup, T1_13_GathersCountBeforeReduceScatters) {
  for (const int gathers : {2, 0}) {
    Net net;
    const GroupId second = net.AddGroup("tp", 2);
    std::vector<NodeId> waits = {net.Input("x", {64, 64})};
    for (int i = 0; i < gathers; ++i) {
      waits.push_back(net.Gather(absl::StrCat(i), net.Parameter(absl::StrCat("w", i), kSmall)));
    }
    const NodeId gradient = net.Call("use", waits, {64, 64});
    net.OnGroup(second);
    for (const char* name : {"a", "b", "c"}) {
      net.Out(net.Scatter(name, net.Call(absl::StrCat("of_", name), {gradient}, {8, 64})),
              SlotKind::kParameterGradient, name);
    }
    EXPECT_EQ(Primary(net.Build()), gathers > 0 ? 0 : second);
  }
}

TEST(PrimaryGroup, T1_14_AnEmptyGraphHasNone) {
  const Graph graph = Net().Build();
  EXPECT_EQ(Primary(graph), -1);
  EXPECT_THAT(upstream::FindTraffic(graph, true).groups, IsEmpty());
  EXPECT_EQ(upstream::FindTraffic(graph, true).group_size, 0);
}

TEST(PrimaryGroup, T1_15_TheFirstOfTwoEquallyFrequentGroupsWins) {
  EXPECT_EQ(Primary(TwoGroups(2, 2)), 0);
  EXPECT_THAT(upstream::FindTraffic(TwoGroups(2, 2), true).groups, ElementsAre(0));
}

TEST(PrimaryGroup, OtherGroupsAreLeftAloneOnRequest) {
  const Graph graph = TwoGroups(3, 2);
  PlanOptions options = GreedyOptions({kMiB});
  EXPECT_THAT(Sizes(Greedy(graph, options)), ElementsAre(3, 2));
  options.primary_group_only = true;
  EXPECT_THAT(Sizes(Greedy(graph, options)), ElementsAre(3));
}

TEST(Greedy, T2_1_FourTinyGathersOfOneKeyMerge) {
  EXPECT_THAT(Buckets(Equal(4), Greedy(Equal(4), GreedyOptions({}))),
              ElementsAre(ElementsAre("AG1", "AG2", "AG3", "AG4")));
}

TEST(Greedy, T2_2_T3_9_AnotherKeyInBetweenDoesNotSeparate) {
  Gathers gathers;
  gathers.Add("A1");
  gathers.Add("A2");
  gathers.net().Typed(DType::kF32);
  gathers.Add("B");
  gathers.net().Typed(DType::kBF16);
  gathers.Add("A3");
  gathers.Add("A4");
  const Graph graph = gathers.Build();
  EXPECT_THAT(Buckets(graph, Greedy(graph, GreedyOptions({kMiB}))),
              ElementsAre(ElementsAre("AGA1", "AGA2", "AGA3", "AGA4")));
}

TEST(Greedy, T2_3_ACapOfTwoSizesMakesPairs) {
  const Graph graph = Equal(6);
  EXPECT_THAT(Sizes(Greedy(graph, GreedyOptions({2 * 1024}))), ElementsAre(2, 2, 2));
  // One byte less, and no two fit.
  EXPECT_THAT(Sizes(Greedy(graph, GreedyOptions({2 * 1024 - 1}))), IsEmpty());
}

TEST(Greedy, T2_4_AnOversizedGatherMergesWithNobody) {
  Gathers gathers;
  gathers.Add("small1");
  gathers.Add("big", {4096, 32});
  gathers.Add("small2");
  EXPECT_THAT(Sizes(Greedy(gathers.Build(), GreedyOptions({kMiB}))), IsEmpty());
}

TEST(Greedy, T2_5_GathersThatTheBackwardRepeatsMergeLikeTheForwards) {
  const Graph forward = Forward(3, 2), backward = Backward(3, 2);
  EXPECT_THAT(Sizes(Greedy(forward, GreedyOptions({kMiB}))), ElementsAre(6));
  EXPECT_THAT(Sizes(Greedy(backward, GreedyOptions({kMiB}))), UnorderedElementsAre(6, 6));
}

TEST(Greedy, OnJointGraphsDirectionsAreKeysOfTheirOwn) {
  const Graph joint = Joint(3, 2, true);
  EXPECT_THAT(Sizes(Greedy(joint, GreedyOptions({kMiB}))), UnorderedElementsAre(6, 6, 6));
}

// Two scatters of gradients that differ as the caller says.
Graph TwoScatters(ReduceOp second, DType dtype) {
  Net net;
  const NodeId a = net.Input("a", {64, 64}), b = net.Typed(dtype).Input("b", {64, 64});
  net.Typed(DType::kBF16);
  net.Out(net.Scatter("1", a), SlotKind::kParameterGradient, "w1");
  net.Typed(dtype);
  net.Out(net.Scatter("2", b, second), SlotKind::kParameterGradient, "w2");
  return net.Build();
}

TEST(Greedy, T2_7_ReduceOpsDoNotMix) {
  EXPECT_THAT(Sizes(Greedy(TwoScatters(ReduceOp::kAvg, DType::kBF16), GreedyOptions({kMiB}))),
              ElementsAre(2));
  EXPECT_THAT(Sizes(Greedy(TwoScatters(ReduceOp::kSum, DType::kBF16), GreedyOptions({kMiB}))),
              IsEmpty());
}

TEST(Greedy, T2_8_DtypesDoNotMix) {
  EXPECT_THAT(Sizes(Greedy(TwoScatters(ReduceOp::kAvg, DType::kF32), GreedyOptions({kMiB}))),
              IsEmpty());
}

TEST(Greedy, T2_10_AScatterThatIsAddedToSomethingStaysAlone) {
  Net net;
  const NodeId a = net.Input("a", {64, 64}), old = net.Input("old", {8, 64});
  net.Out(net.Scatter("1", a), SlotKind::kParameterGradient, "w1");
  net.Out(net.Call("add", {old, net.Scatter("2", a)}, {8, 64}), SlotKind::kParameterGradient, "w2");
  EXPECT_THAT(Sizes(Greedy(net.Build(), GreedyOptions({kMiB}))), IsEmpty());
}

Graph Reductions(int count) {
  Net net;
  for (int i = 0; i < count; ++i) {
    const NodeId x = net.Input(absl::StrCat("g", i), {64, 64});
    net.Out(net.Reduce(absl::StrCat(i), x), SlotKind::kParameterGradient, absl::StrCat("w", i));
  }
  return net.Build();
}

TEST(Greedy, T2_11_ReductionsOfPureDataParallelismMergeWhereSumsMayChange) {
  const Graph graph = Reductions(4);
  PlanOptions options = GreedyOptions({kMiB});
  EXPECT_THAT(Sizes(Greedy(graph, options)), ElementsAre(4));
  EXPECT_THAT(Sizes(RunPass("pre-bucket", graph, options)), ElementsAre(4));
  options.numerics = Numerics::kEagerOrder;
  EXPECT_THAT(Sizes(Greedy(graph, options)), ElementsAre(4));
  options.numerics = Numerics::kExact;
  EXPECT_THAT(Sizes(Greedy(graph, options)), IsEmpty());
}

TEST(Greedy, T3_4_SmallNeighboursMerge) {
  EXPECT_THAT(Sizes(Greedy(Equal(4), GreedyOptions({10 * kMiB}, 1000))), ElementsAre(4));
}

TEST(Greedy, T3_5_TenMebibytesHoldTwoOfFive) {
  EXPECT_THAT(Sizes(Greedy(Equal(6, {5120, 64}), GreedyOptions({10 * kMiB}, 1000))),
              ElementsAre(2, 2, 2));
}

// Four gathers with so many kernels between two; by default their starts stand 53 apart.
Graph FarApart(int kernels = 51) {
  Gathers gathers;
  std::vector<NodeId> parameters;
  for (int i = 1; i <= 4; ++i) {
    parameters.push_back(gathers.net().Parameter(absl::StrCat(i), kSmall));
  }
  for (int i = 1; i <= 4; ++i) {
    gathers.Use(absl::StrCat(i), parameters[static_cast<size_t>(i - 1)]);
    gathers.Relus(kernels);
  }
  return gathers.Build();
}

TEST(Greedy, T3_6_TheSpanSeparatesWhatStandsFarApart) {
  EXPECT_THAT(Sizes(Greedy(FarApart(), GreedyOptions({10 * kMiB}, 80))), ElementsAre(2, 2));
  EXPECT_THAT(Sizes(Greedy(FarApart(), GreedyOptions({10 * kMiB}, 106))), ElementsAre(3));
  EXPECT_THAT(Sizes(Greedy(FarApart(), GreedyOptions({10 * kMiB}, 105))), ElementsAre(2, 2));
}

// Farther than any span that somebody might take for a default.
TEST(Greedy, T3_7_WithoutASpanDistanceDoesNotMatter) {
  const Graph graph = FarApart(2000);
  EXPECT_THAT(Sizes(Greedy(graph, GreedyOptions({10 * kMiB}, kNoLimit))), ElementsAre(4));
  EXPECT_THAT(Sizes(Greedy(graph, GreedyOptions({10 * kMiB}, 1500))), IsEmpty());
}

TEST(Greedy, T3_8_AGatherNeverMergesWithItsDescendant) {
  Gathers gathers;
  gathers.Use("2", gathers.Add("1"));
  EXPECT_THAT(Sizes(Greedy(gathers.Build(), GreedyOptions({10 * kMiB}, 1000))), IsEmpty());
}

TEST(Greedy, T3_10_EachBucketOfAKeyHasACapOfItsOwn) {
  const Graph graph = Equal(6);
  EXPECT_THAT(Sizes(Greedy(graph, GreedyOptions({2 * 1024, 4 * 1024}))), ElementsAre(2, 4));
  // The last cap repeats.
  EXPECT_THAT(Sizes(Greedy(Equal(11), GreedyOptions({2 * 1024, 4 * 1024}))), ElementsAre(2, 4, 4));
}

TEST(Greedy, T3_12_SpansGoByPositionsAtEntry) {
  Net net;
  const GroupId tp = net.AddGroup("tp", 2);
  std::vector<NodeId> p, waits;
  for (int i = 0; i < 4; ++i) p.push_back(net.Parameter(absl::StrCat("w", i), kSmall));
  waits.push_back(net.Gather("1", p[0]));
  net.OnGroup(tp);
  waits.push_back(net.Gather("x", p[1]));
  net.OnGroup(0);
  waits.push_back(net.Gather("2", p[2]));
  net.OnGroup(tp);
  waits.push_back(net.Gather("y", p[3]));
  net.Out(net.Call("use", waits, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  PlanOptions options = GreedyOptions({kMiB}, 2);
  EXPECT_THAT(Sizes(Greedy(graph, options)), IsEmpty());
  // Merged behind its last member, the other group's bucket no longer stands in between.
  Plan merged = ProgramOrder(graph);
  merged.buckets.resize(1);
  merged.buckets[0].members = {graph.collectives()[1].start, graph.collectives()[3].start};
  LayOut(graph, merged.buckets[0]);
  const auto gone = [&](const Step& step) {
    return step.id == graph.collectives()[1].start || step.id == graph.collectives()[1].wait ||
           step.id == graph.collectives()[3].wait;
  };
  merged.order.erase(std::remove_if(merged.order.begin(), merged.order.end(), gone),
                     merged.order.end());
  const auto last = std::find(merged.order.begin(), merged.order.end(),
                              Step{Step::Kind::kNode, graph.collectives()[3].start});
  *last = {Step::Kind::kStart, 0};
  merged.order.insert(last + 1, {Step::Kind::kWait, 0});
  const Plan plan = RunPass("greedy-bucket", graph, options, &merged);
  EXPECT_THAT(Buckets(graph, plan),
              ElementsAre(ElementsAre("AGx", "AGy"), ElementsAre("AG1", "AG2")));
}

TEST(Greedy, T3_13_BothLimitsAtOnceCountOneBucketTwice) {
  const Plan plan = Greedy(FarApart(), GreedyOptions({2 * 1024}, 80));
  EXPECT_THAT(Sizes(plan), ElementsAre(2, 2));
  EXPECT_THAT(DiagnosticText(plan, "greedy-summary"),
              HasSubstr("2 buckets, max span 53, closed by bytes 1, by span 1"));
  EXPECT_THAT(DiagnosticText(plan, "bucket-closed"), HasSubstr("cap of 2048 bytes and span of 80"));
}

TEST(Greedy, T3_14_AGatherThatTheSpanLeavesAloneCountsNowhere) {
  const Plan plan = Greedy(FarApart(), GreedyOptions({kMiB}, 52));
  EXPECT_THAT(Sizes(plan), IsEmpty());
  EXPECT_THAT(DiagnosticText(plan, "greedy-summary"),
              HasSubstr("0 buckets, max span 0, closed by bytes 0, by span 0"));
}

TEST(Greedy, EveryBucketSaysWhatClosedItAndNamesItsMembers) {
  const Graph graph = Equal(6);
  const Plan plan = Greedy(graph, GreedyOptions({4 * 1024}));
  std::vector<Diagnostic> closed;
  for (const Diagnostic& d : plan.diagnostics) {
    if (d.code == "bucket-closed") closed.push_back(d);
  }
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_THAT(closed[0].text, HasSubstr("cap of 4096 bytes (4096 bytes"));
  EXPECT_THAT(closed[0].nodes, ::testing::ElementsAreArray(plan.buckets[0].members));
  EXPECT_THAT(closed[1].text, HasSubstr("the end of its list"));
}

TEST(Greedy, T3_15_TheMetricCountsComputeBetweenScatters) {
  Net net;
  const NodeId x = net.Input("x", {64, 64}), y = net.Input("y", {64, 64});
  const auto mm = [&](int i) { return net.Call(absl::StrCat("mm", i), {x, y}, {64, 64}); };
  mm(1);
  const NodeId first = mm(2);
  net.Out(net.Scatter("1", first), SlotKind::kParameterGradient, "w1");
  mm(3);
  mm(4);
  const NodeId second = mm(5);
  net.Out(net.Scatter("2", second), SlotKind::kParameterGradient, "w2");
  mm(6);
  const Graph graph = net.Build();
  const Plan plan = ProgramOrder(graph);
  EXPECT_EQ(MaxComputeBetweenReduceScatters(graph, plan.buckets, plan.order), 3);
}

// AG2 and AG4 depend on AG1; AG3 on nothing.
Graph Dependent() {
  Gathers gathers;
  const NodeId one = gathers.Add("1");
  gathers.Use("2", one);
  gathers.Add("3");
  gathers.Use("4", one);
  return gathers.Build();
}

TEST(Greedy, T3_16_DependentGathersMakeABucketOfTheirOwn) {
  const Graph graph = Dependent();
  const Plan plan = Greedy(graph, GreedyOptions({kMiB}));
  EXPECT_THAT(Buckets(graph, plan),
              UnorderedElementsAre(ElementsAre("AG1", "AG3"), ElementsAre("AG2", "AG4")));
  EXPECT_THAT(DiagnosticText(plan, "bucket-closed"), HasSubstr("dependence: 2"));
}

TEST(Greedy, ALongChainOfDependentGathersEndsTheSearchAndThePlanSaysSo) {
  // Each depends on the one before: a round places one, so that all rounds together are quadratic.
  Net net(1);
  NodeId w = net.Parameter("w", kSmall);
  for (int i = 0; i < 5000; ++i) w = net.Gather(absl::StrCat(i), w);
  net.Out(w, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Plan plan = Greedy(graph, GreedyOptions({}));
  EXPECT_THAT(Sizes(plan), IsEmpty());
  EXPECT_THAT(DiagnosticText(plan, "greedy-summary"), HasSubstr("the search was cut short"));
}

TEST(Greedy, T3_17_TheSpanBoundsHowMuchComputePilesUp) {
  Net net;
  NodeId h = net.Input("h", {64, 64});
  std::vector<NodeId> parameters;
  for (int i = 0; i < 12; ++i) parameters.push_back(net.Input(absl::StrCat("p", i), {64, 64}));
  for (int i = 0; i < 12; ++i) {
    const NodeId p = parameters[static_cast<size_t>(i)];
    const NodeId gw = net.Call(absl::StrCat("gw", i), {p, h}, {64, 64});
    h = net.Call(absl::StrCat("gx", i), {h, p}, {64, 64});
    net.Out(net.Scatter(absl::StrCat(i), gw), SlotKind::kParameterGradient, absl::StrCat("w", i));
  }
  net.Out(h, SlotKind::kInputGradient);
  const Graph graph = net.Build();
  const Plan before = ProgramOrder(graph);
  EXPECT_EQ(MaxComputeBetweenReduceScatters(graph, before.buckets, before.order), 2);
  struct Row {
    int32_t span;
    size_t scatters;
    int64_t metric;
  };
  for (const bool upstream : {false, true}) {
    for (const Row& row :
         {Row{kNoLimit, 1, 24}, Row{1500, 1, 24}, Row{16, 3, 10}, Row{8, 4, 6}, Row{4, 6, 4}}) {
      PlanOptions options = GreedyOptions({1000 * kMiB}, row.span);
      options.upstream = upstream;
      // The whole mode: what follows moves waits, not scatters.
      const absl::StatusOr<Plan> plan = MakePlan(graph, CostsOf(graph), options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->buckets.size(), row.scatters) << row.span;
      EXPECT_EQ(MaxComputeBetweenReduceScatters(graph, plan->buckets, plan->order), row.metric)
          << row.span << " " << upstream;
      EXPECT_THAT(DiagnosticText(*plan, "greedy-summary"),
                  HasSubstr(absl::StrCat("reduce-scatters 2 -> ", row.metric)));
    }
  }
}

TEST(Greedy, AutomaticCapsShrinkUntilThePlanFitsIntoMemory) {
  // Sixteen gathers, each used and gone before the next: merged, all of them live at once.
  const Graph graph = Forward(8, 2);
  PlanOptions options = GreedyOptions({});
  const Plan free = Greedy(graph, options);
  ASSERT_THAT(Sizes(free), ElementsAre(16));
  const Costs costs = CostsOf(graph);
  const int64_t most = Simulate(graph, free, costs).prediction.peak_bytes;
  const int64_t least = Simulate(graph, ProgramOrder(graph), costs).prediction.peak_bytes;
  ASSERT_LT(least, most);
  options.memory_limit_bytes = (most + least) / 2;
  const Plan fitted = Greedy(graph, options);
  EXPECT_THAT(Sizes(fitted), ElementsAre(8, 8)) << "once is enough";
  EXPECT_LE(Simulate(graph, fitted, costs).prediction.peak_bytes, options.memory_limit_bytes);
  EXPECT_THAT(DiagnosticText(fitted, "greedy-summary"), HasSubstr("caps halved"));
  options.memory_limit_bytes = least;
  EXPECT_LE(Simulate(graph, Greedy(graph, options), costs).prediction.peak_bytes, least);
}

TEST(Greedy, AGivenCapThatDoesNotFitIsRefusedInBytesAndReportedForAShare) {
  const Graph graph = Forward(8, 2);
  PlanOptions options = GreedyOptions({kMiB});
  options.numerics = Numerics::kEagerOrder;  // else buckets may be split
  const Costs costs = CostsOf(graph);
  options.memory_limit_bytes = Simulate(graph, ProgramOrder(graph), costs).prediction.peak_bytes;
  for (const bool upstream : {false, true}) {
    options.upstream = upstream;
    EXPECT_EQ(MakePlan(graph, costs, options).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  options.memory_limit_bytes = 0;
  for (const bool upstream : {false, true}) {
    options.upstream = upstream;
    const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(HasDiagnostic(*plan, "memory-limit"));
  }
}

}  // namespace
}  // namespace bucketd::testing
