#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/pass/constraints.h"
#include "passes/pass/fit_memory.h"
#include "passes/planner.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

using ::testing::HasSubstr;

std::string Order(const Graph& graph, const PlanOptions& options) {
  return Text(graph, Planned(graph, options));
}

PlanOptions Layers() { return Manual("layers.[0-2]"); }

constexpr char kForward[] = "AG0 AG1 W0 mm00 mm01 AG2 W1 mm10 mm11 W2 mm20 mm21";
constexpr char kMergedOnly[] = "AG0 W0 mm00 mm01 AG1 W1 mm10 mm11 AG2 W2 mm20 mm21";

TEST(Schedule, T4_1_ForwardGathersAreIssuedOneBlockAhead) {
  EXPECT_EQ(Order(Forward(3, 2), Layers()), kForward);
}

TEST(Schedule, T4_2_TwoBlocksInOneEntry) {
  EXPECT_EQ(Order(Forward(3, 2), Manual("layers.0+layers.1,layers.2")),
            "AG01 AG2 W01 mm00 mm01 mm10 mm11 W2 mm20 mm21");
}

TEST(Schedule, T4_3_BackwardGathersAheadAndScattersBehind) {
  EXPECT_EQ(Order(Backward(3, 2), Layers()),
            "AG2' AG1' W2' gw21 gx21 gw20 gx20 RS2 AG0' W1' gw11 gx11 gw10 gx10 RS1 WR2 "
            "W0' gw01 gx01 gw00 gx00 RS0 WR1 WR0");
}

TEST(Schedule, T4_13_JointWithoutReshardingKeepsGathersInTheForward) {
  EXPECT_EQ(Order(Joint(3, 2, false), Layers()),
            absl::StrCat(kForward,
                         " gw21 gx21 gw20 gx20 RS2 gw11 gx11 gw10 gx10 RS1 WR2 "
                         "gw01 gx01 gw00 gx00 RS0 WR1 WR0"));
}

TEST(Schedule, T4_13_JointWithReshardingNeverGathersAcrossTheBoundary) {
  EXPECT_EQ(Order(Joint(3, 2, true), Layers()),
            absl::StrCat(kForward,
                         " AG2' AG1' W2' gw21 gx21 gw20 gx20 RS2 AG0' W1' gw11 gx11 gw10 gx10 "
                         "RS1 WR2 W0' gw01 gx01 gw00 gx00 RS0 WR1 WR0"));
}

TEST(Schedule, T4_18_DistanceOfTwoReorderOfOneAndNone) {
  const Graph graph = Forward(3, 2);
  PlanOptions options = Layers();
  options.prefetch_forward = 2;
  EXPECT_EQ(Order(graph, options), "AG0 AG1 AG2 W0 mm00 mm01 W1 mm10 mm11 W2 mm20 mm21");
  options = Layers();
  options.reorder = "layers.1";
  EXPECT_EQ(Order(graph, options), "AG0 AG1 W0 mm00 mm01 W1 mm10 mm11 AG2 W2 mm20 mm21");
  options.reorder = "none";
  EXPECT_EQ(Order(graph, options), kMergedOnly);
  options.reorder = "all";
  options.prefetch_forward = 0;
  EXPECT_EQ(Order(graph, options), kMergedOnly);
}

TEST(Schedule, T4_18_AnEntryMayHaveADistanceOfItsOwn) {
  PlanOptions options = Layers();
  options.reorder = "layers.2:2";
  EXPECT_EQ(Order(Forward(3, 2), options), "AG0 AG2 W0 mm00 mm01 AG1 W1 mm10 mm11 W2 mm20 mm21");
}

TEST(Schedule, T4_18_AReorderEntryThatIsNoUnitIsNamed) {
  PlanOptions options = Layers();
  options.reorder = "layers.7";
  const Plan plan = Planned(Forward(3, 2), options);
  EXPECT_THAT(DiagnosticText(plan, "unknown-reorder-entry"), HasSubstr("layers.7"));
}

TEST(Schedule, T4_12_ReduceScatterWaitsAreDeferredByOne) {
  PlanOptions options = Layers();
  options.prefetch_backward = 0;
  EXPECT_EQ(
      Order(Joint(3, 1, false), options),
      "AG00 AG10 W00 mm00 AG20 W10 mm10 W20 mm20 gw20 gx20 RS20 gw10 gx10 RS10 WR20 gw00 gx00 "
      "RS00 WR10 WR00")
      << "the gathers and scatters of units with one parameter stay nodes, and move all the same";
}

TEST(Schedule, T4_12_DeferringByTwoOrNotAtAll) {
  PlanOptions options = Layers();
  options.defer_reduce_scatter = 2;
  EXPECT_THAT(Order(Joint(3, 2, false), options),
              HasSubstr("RS2 gw11 gx11 gw10 gx10 RS1 gw01 gx01 gw00 gx00 RS0 WR2 WR1 WR0"));
  options.defer_reduce_scatter = 0;
  EXPECT_THAT(Order(Joint(3, 2, false), options),
              HasSubstr("RS2 WR2 gw11 gx11 gw10 gx10 RS1 WR1 gw01 gx01 gw00 gx00 RS0 WR0"));
}

TEST(Schedule, AScatterThatIsWaitedForLateStaysThere) {
  // Waits already sunk to the end are not pulled up by the merge.
  Net net;
  const NodeId g = net.Input("g", {64, 8}, Role::kTangent);
  net.In("layers.0");
  const NodeId a = net.Start(CollectiveKind::kReduceScatter, "RSa", g, ReduceOp::kAvg);
  const NodeId b = net.Start(CollectiveKind::kReduceScatter, "RSb", g, ReduceOp::kAvg);
  net.Call("mm", {g}, {8, 8});
  net.Out(net.Wait("WRa", a), SlotKind::kParameterGradient, "layers.0.a");
  net.Out(net.Wait("WRb", b), SlotKind::kParameterGradient, "layers.0.b");
  EXPECT_EQ(Order(net.Build(), Manual("layers.0")), "RS0 mm WR0");
}

// A cast of each parameter next to its gather.
Graph WithCasts(bool early_reader) {
  Net net;
  NodeId h = net.Input("x", {64, 64});
  std::vector<NodeId> p;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 2; ++j) {
      p.push_back(net.Parameter(absl::StrCat("layers.", i, ".w", j), {8, 64}));
    }
  }
  NodeId shared = kNoNode;
  if (early_reader) {
    shared = net.Call("cast20", {p[4]}, {8, 64});
    h = net.Call("early", {h, shared}, {64, 64});
  }
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 2; ++j) {
      const std::string name = absl::StrCat(i, j);
      net.In(absl::StrCat("layers.", i));
      const bool is_shared = early_reader && i == 2 && j == 0;
      const NodeId cast = is_shared ? shared : net.Call("cast" + name, {p[2 * i + j]}, {8, 64});
      h = net.Call("mm" + name, {h, net.Gather(name, cast)}, {64, 64});
    }
  }
  net.Out(h, SlotKind::kOutput);
  return net.Build();
}

TEST(Schedule, CastsMoveWithTheirGather) {
  EXPECT_EQ(Order(WithCasts(false), Layers()),
            "cast00 cast01 AG0 cast10 cast11 AG1 W0 mm00 mm01 cast20 cast21 AG2 W1 mm10 mm11 W2 "
            "mm20 mm21");
}

TEST(Schedule, T4_17_AnAncestorThatIsReadEarlierStaysWhereItIs) {
  EXPECT_EQ(Order(WithCasts(true), Layers()),
            "cast20 early cast00 cast01 AG0 cast10 cast11 AG1 W0 mm00 mm01 cast21 AG2 W1 mm10 "
            "mm11 W2 mm20 mm21");
}

TEST(Schedule, RandomOpsKeepTheirOrderWhenAGatherIsHoistedAboveOne) {
  // The cast of layer 1 draws random bits (stochastic rounding), the matrix product before it too.
  Net net;
  NodeId h = net.Input("x", {64, 64});
  const NodeId p0 = net.Parameter("layers.0.w", {8, 64});
  const NodeId p1 = net.Parameter("layers.1.w", {8, 64});
  net.In("layers.0");
  h = net.Call("dropout0", {h}, {64, 64}, kOrderedFlag);
  h = net.Call("mm0", {h, net.Gather("0", p0)}, {64, 64});
  h = net.Call("dropout1", {h}, {64, 64}, kOrderedFlag);
  net.In("layers.1");
  const NodeId cast = net.Call("rand_cast", {p1}, {8, 64}, kOrderedFlag);
  net.Out(net.Call("mm1", {h, net.Gather("1", cast)}, {64, 64}), SlotKind::kOutput);
  EXPECT_EQ(Order(net.Build(), Manual("layers.[0-1]")),
            "dropout0 AG0 W0 mm0 dropout1 rand_cast AG1 W1 mm1")
      << "the gather waits for its cast, and that for the draw before it";
}

TEST(Schedule, AGatherIsNotHoistedAboveAnInPlaceUpdateOfItsParameter) {
  Net net;
  NodeId h = net.Input("x", {64, 64});
  const NodeId p0 = net.Parameter("layers.0.w", {8, 64});
  const NodeId p1 = net.Parameter("layers.1.w", {8, 64});
  net.In("layers.0");
  h = net.Call("mm0", {h, net.Gather("0", p0)}, {64, 64});
  const NodeId delta = net.Call("delta", {h}, {8, 64});
  const NodeId updated = net.Mutate("add_", p1, {delta});
  net.In("layers.1");
  h = net.Call("mm1", {h, net.Gather("1", p1)}, {64, 64});
  net.Out(h, SlotKind::kOutput);
  net.Out(updated, SlotKind::kOutput);
  EXPECT_EQ(Order(net.Build(), Manual("layers.[0-1]")), "AG0 W0 mm0 delta add_ AG1 W1 mm1");
}

TEST(Schedule, AWriterStaysBehindTheWaitOfACollectiveThatAnotherWriterStandsInside) {
  Net net;
  const NodeId x = net.Call("x", {net.Input("in", {8, 8})}, {8, 8});
  const NodeId start = net.Start(CollectiveKind::kAllReduce, "r", x, ReduceOp::kSum);
  const NodeId inside = net.Mutate("inside", x);
  const NodeId wait = net.Wait("r", start);
  const NodeId behind = net.Mutate("behind", inside);
  net.Out(behind, SlotKind::kOutput);
  const Graph graph = net.Build();
  const absl::StatusOr<Constraints> found = FindConstraints(graph);
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<std::pair<NodeId, NodeId>> edges;
  for (const Constraints::Edge& e : found->edges) edges.emplace_back(e.before, e.after);
  const auto edge = [](NodeId before, NodeId after) { return std::pair(before, after); };
  EXPECT_THAT(edges, ::testing::UnorderedElementsAre(edge(start, inside), edge(inside, behind),
                                                     edge(wait, behind),
                                                     edge(behind, graph.output_node())));
}

TEST(Schedule, AReaderOfWhatACollectiveWritesStaysBehindItsWait) {
  Net net;
  const NodeId x = net.Call("x", {net.Input("in", {8, 8})}, {8, 8});
  const NodeId start = net.ReduceInPlace("r", x);
  const NodeId wait = net.Wait("w", start);
  const NodeId reader = net.Call("reader", {x}, {8, 8});  // not of the wait: it has the buffer
  net.Out(wait, SlotKind::kOutput);
  net.Out(reader, SlotKind::kOutput);
  const absl::StatusOr<Constraints> found = FindConstraints(net.Build());
  ASSERT_TRUE(found.ok()) << found.status();
  const auto kept = [&](const Constraints::Edge& e) {
    return e.before == wait && e.after == reader;
  };
  EXPECT_TRUE(std::any_of(found->edges.begin(), found->edges.end(), kept));
}

TEST(Schedule, AnInPlaceOpBehindAGatherDoesNotPassItsWait) {
  // The gather reads p until its wait; only then may p be written.
  Net net;
  NodeId h = net.Input("x", {64, 64});
  const NodeId p0 = net.Parameter("layers.0.a", {8, 64}), p1 = net.Parameter("layers.0.b", {8, 64});
  net.In("layers.0");
  const NodeId w0 = net.Gather("0", p0);
  const NodeId updated = net.Mutate("add_", p0, {net.Input("delta", {8, 64})});
  const NodeId w1 = net.Gather("1", p1);
  h = net.Call("mm", {h, w0, w1}, {64, 64});
  net.Out(h, SlotKind::kOutput);
  net.Out(updated, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Plan plan = Planned(graph, Manual("layers.0"));
  EXPECT_EQ(Text(graph, plan), "AG0 W0 add_ AG1 W1 mm");
  EXPECT_TRUE(HasDiagnostic(plan, "pinned-collective"));
}

// Three layers whose gradients are scattered and then reduced over replicas.
Graph ScatterThenReduce() {
  Net net;
  NodeId h = net.Input("t", {64, 64}, Role::kTangent);
  const GroupId replicas = net.AddGroup("replicate", 2);
  for (int i = 2; i >= 0; --i) {
    const std::string name = absl::StrCat(i);
    net.In(absl::StrCat("layers.", i)).OnGroup(0);
    const NodeId gw = net.Call("gw" + name, {h}, {64, 64});
    h = net.Call("gx" + name, {h}, {64, 64});
    const NodeId scattered = net.Scatter(name, gw);
    net.OnGroup(replicas);
    net.Out(net.Call("cast" + name, {net.Reduce(name, scattered)}, {8, 64}),
            SlotKind::kParameterGradient, absl::StrCat("layers.", i, ".w"));
  }
  net.Out(h, SlotKind::kInputGradient);
  return net.Build();
}

TEST(Schedule, UsersOfADeferredWaitFollowIt) {
  PlanOptions options = Layers();
  options.bucket_all_reduce = false;
  EXPECT_EQ(Order(ScatterThenReduce(), options),
            "gw2 gx2 RS2 gw1 gx1 RS1 WR2 AR2 WA2 cast2 gw0 gx0 RS0 WR1 AR1 WA1 cast1 WR0 AR0 WA0 "
            "cast0");
}

TEST(Schedule, AnAllReduceBehindAScatterIsWaitedForBehindTheNextUnitsAllReduce) {
  EXPECT_EQ(Order(ScatterThenReduce(), Layers()),
            "gw2 gx2 RS2 gw1 gx1 RS1 WR2 AR2 gw0 gx0 RS0 WR1 AR1 WA2 cast2 WR0 AR0 WA1 cast1 WA0 "
            "cast0");
}

TEST(Schedule, ALimitOnMemoryReducesTheDistanceAndSaysSo) {
  const Graph graph = Forward(3, 2);
  PlanOptions options = Layers();
  const Plan free = Planned(graph, options);
  options.reorder = "none";
  const Plan none = Planned(graph, options);
  ASSERT_LT(none.prediction.peak_bytes, free.prediction.peak_bytes);
  options.reorder = "all";
  options.memory_limit_bytes = free.prediction.peak_bytes;
  EXPECT_EQ(Order(graph, options), kForward);
  options.memory_limit_bytes = none.prediction.peak_bytes;
  const Plan tight = Planned(graph, options);
  EXPECT_LE(tight.prediction.peak_bytes, options.memory_limit_bytes);
  EXPECT_THAT(DiagnosticText(tight, "prefetch-reduced"), HasSubstr("1 -> 0"));
  EXPECT_FALSE(HasDiagnostic(tight, "memory-limit"));
}

TEST(Schedule, AShareThatNoDistanceMeetsIsExceededAndNamed) {
  const Graph graph = Forward(3, 2);
  PlanOptions options = Layers();
  options.memory_limit_bytes = 0;
  options.memory_limit_ppm = 1;
  const Plan plan = Planned(graph, options);
  EXPECT_EQ(Text(graph, plan), kMergedOnly);
  EXPECT_THAT(DiagnosticText(plan, "memory-limit"), HasSubstr("the limit is "));
}

TEST(Schedule, ALimitInBytesThatNoDistanceMeetsIsRefused) {
  const Graph graph = Forward(3, 2);
  PlanOptions options = Layers();
  options.memory_limit_bytes = 1;
  const absl::Status status = MakePlan(graph, CostsOf(graph), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is 1 "));
}

TEST(FitMemory, TakesOnlyFromThoseThatReachFarthestAcrossAMarkedStep) {
  //           steps: 0  1  2  3  4  5; step 2 is marked
  const std::vector<Scheduler::Window> windows = {{0, 2}, {1, 4}, {2, 3}, {3, 5}, {0, 1}, {0, -1}};
  std::vector<int32_t> distances = {2, 2, 1, 3, 3, 9};
  ASSERT_TRUE(TakeFromFarthest(windows, {false, false, true, false, false, false}, distances));
  EXPECT_THAT(distances, ::testing::ElementsAre(1, 1, 1, 3, 3, 9));
  distances = {1};
  EXPECT_FALSE(TakeFromFarthest({{0, 1}}, {false, false, true}, distances));
}

TEST(FitMemory, TakesAQuarterOfAGreatDistance) {
  std::vector<int32_t> distances = {1000};
  ASSERT_TRUE(TakeFromFarthest({{0, 0}}, {true}, distances));
  EXPECT_EQ(distances[0], 750);
}

TEST(FitMemory, AGreatDistanceComesDownToWhatMemoryAllows) {
  const Graph graph = Forward(12, 2);
  PlanOptions options = Manual("layers.[0-11]");
  options.prefetch_forward = 2;
  const Plan two = Planned(graph, options);
  options.prefetch_forward = 11;
  options.memory_limit_bytes = two.prediction.peak_bytes;
  const Plan fitted = Planned(graph, options);
  EXPECT_LE(fitted.prediction.peak_bytes, two.prediction.peak_bytes);
  EXPECT_THAT(DiagnosticText(fitted, "prefetch-reduced"), HasSubstr("-> 2"));
}

// The buckets that are left, by their members, where memory is at its highest at `at`.
std::vector<std::string> LeftWhenSplitAt(const Graph& graph, const std::string& at) {
  const PlanOptions options = Layers();
  const Costs costs = CostsOf(graph);
  Plan plan = Planned(graph, options);
  PassContext context(graph, costs, options);
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    context.launches.push_back({.bucket = static_cast<BucketId>(b)});
  }
  std::vector<int64_t> live;
  for (const Step& step : plan.order) {
    live.push_back(step.kind == Step::Kind::kNode && graph.node_name(step.id) == at ? 1 : 0);
  }
  EXPECT_THAT(live, ::testing::Contains(1)) << at;
  SplitOverLimit(context, live, std::numeric_limits<int64_t>::max(), plan);
  std::vector<std::string> left;
  for (const Bucket& bucket : plan.buckets) {
    left.push_back(absl::StrJoin(Members(graph, bucket), " "));
  }
  return left;
}

TEST(SplitOverLimit, AGatherHoldsMemoryUntilItsMembersLastUse) {
  // Members are used in the other order than they are gathered in.
  Net net;
  std::vector<NodeId> gathered;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      net.In(absl::StrCat("layers.", i));
      const std::string name = absl::StrCat(i, j);
      const NodeId weight = net.Parameter(absl::StrCat("layers.", i, ".w", j), {8, 64});
      gathered.push_back(net.Gather(name, weight));
    }
  }
  NodeId h = net.Input("x", {64, 64});
  for (const size_t i : {1u, 0u, 3u, 2u}) {
    h = net.Call(absl::StrCat("mm", i), {h, gathered[i]}, {64, 64});
  }
  net.Out(h, SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_EQ(Order(graph, Layers()), "AG0 AG1 W0 W1 mm1 mm0 mm3 mm2");
  EXPECT_THAT(LeftWhenSplitAt(graph, "mm0"), ::testing::ElementsAre("AG10 AG11"));
  EXPECT_THAT(LeftWhenSplitAt(graph, "mm3"), ::testing::ElementsAre("AG00 AG01"));
}

TEST(SplitOverLimit, AReductionHoldsMemoryFromItsFirstInputOn) {
  Net net;
  const NodeId t = net.Input("t", {64, 64}, Role::kTangent);
  net.In("layers.0");
  for (const char* const name : {"a", "b"}) {
    const NodeId gradient = net.Call(absl::StrCat("gw", name), {t}, {64, 64});
    net.Out(net.Scatter(name, gradient), SlotKind::kParameterGradient,
            absl::StrCat("layers.0.", name));
  }
  const Graph graph = net.Build();
  EXPECT_EQ(Order(graph, Layers()), "gwa gwb RS0 WR0");
  EXPECT_THAT(LeftWhenSplitAt(graph, "gwa"), ::testing::IsEmpty());
}

}  // namespace
}  // namespace bucketd::testing
