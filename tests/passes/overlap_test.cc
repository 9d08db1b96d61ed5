// The overlap scheduler: goldens, rules one by one, and where it differs from torch on purpose.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "passes/base/cancellation.h"
#include "tests/passes/overlap_test_util.h"

namespace bucketd {
namespace {

using testing::Backward;
using testing::Before;
using testing::Captured;
using testing::CapturedNames;
using testing::ExposedPs;
using testing::Forward;
using testing::HiddenBy;
using testing::Net;
using testing::OrderOf;
using testing::OverlapOptions;
using testing::Scheduled;
using testing::ScheduleStep;
using testing::Text;
using testing::Timed;

constexpr int64_t kUs = 1'000'000;     // picoseconds
constexpr int64_t kFootprint = 9'216;  // of a gather or scatter of [64,64] bf16 over 8 ranks

// What holds for torch's algorithm as it is and for ours.
class EitherOverlap : public ::testing::TestWithParam<bool> {
 protected:
  static PlanOptions Options() { return OverlapOptions(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Upstream, EitherOverlap, ::testing::Bool());

constexpr char kOneAhead[] =
    "AG00 W00 AG01 mm00 W01 AG10 mm01 W10 AG11 mm10 W11 AG20 mm11 W20 AG21 mm20 W21 mm21";
constexpr char kNoneAhead[] =
    "AG00 W00 mm00 AG01 W01 mm01 AG10 W10 mm10 AG11 W11 mm11 AG20 W20 mm20 AG21 W21 mm21";

TEST_P(EitherOverlap, OneGatherHidesUnderAProductAsLong) {
  const Graph graph = Forward(3, 2);
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 1}}), Options()), kOneAhead);
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 1}}, 1.0), Options()), kOneAhead);
}

TEST_P(EitherOverlap, ThreeGathersHideUnderAProductThreeTimesAsLong) {
  const Graph graph = Forward(3, 2);
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 3}}), Options()),
            "AG00 W00 AG01 AG10 AG11 mm00 W01 AG20 AG21 mm01 W10 mm10 W11 mm11 W20 mm20 W21 mm21");
}

TEST_P(EitherOverlap, LatencyIsPaidOnceForWhatIsInFlightTogether) {
  const Graph graph = Forward(3, 2);
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 3}}, 1.0), Options()),
            "AG00 W00 AG01 AG10 AG11 AG20 AG21 mm00 W01 mm01 W10 mm10 W11 mm11 W20 mm20 W21 mm21");
}

TEST_P(EitherOverlap, AGatherStartsAtMostSoManyComputeNodesAhead) {
  const Graph graph = Forward(3, 2);
  PlanOptions options = Options();
  options.max_compute_prefetch = 1;
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 3}}), options), kOneAhead);
  options.max_compute_prefetch = 0;
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 3}}), options), kNoneAhead);
}

TEST_P(EitherOverlap, NothingIsPrefetchedIntoAPlanThatNobodyWants) {
  const Graph graph = Forward(3, 2);
  const Costs costs = Timed(graph, {{"AG", 1}, {"mm", 3}});
  const PlanOptions options = Options();
  PassContext context(graph, costs, options);
  Plan plan = ProgramOrder(graph);
  context.program_order = Simulate(graph, plan, costs).prediction;
  ASSERT_TRUE((*MakePass("tag-collectives"))->Run(context, plan).ok());
  const std::atomic<bool> cancelled = true;
  const CancellationScope scope(cancelled);
  ASSERT_TRUE((*MakePass("schedule-overlap"))->Run(context, plan).ok());
  EXPECT_EQ(Text(graph, plan), kNoneAhead);
}

TEST_P(EitherOverlap, RoomForOneCollectiveKeepsOneInFlight) {
  const Graph graph = Forward(3, 2);
  const Costs costs = Timed(graph, {{"AG", 1}, {"mm", 3}});
  PlanOptions options = Options();
  options.max_in_flight_bytes = 9'300;
  EXPECT_EQ(OrderOf(graph, costs, options), kOneAhead);
  options.max_in_flight_bytes = kFootprint;
  EXPECT_EQ(OrderOf(graph, costs, options), kOneAhead);
  options.max_in_flight_bytes = kFootprint - 1;
  EXPECT_EQ(OrderOf(graph, costs, options), kNoneAhead);
}

// a is needed by c's gather; b is the first to open a window.
TEST_P(EitherOverlap, T6_1_ComputeIsNotPulledForwardToReachACollective) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId b = net.Call("mmb", {x}, {64, 64});
  const NodeId a = net.Call("mma", {x}, {8, 64});
  const NodeId w = net.Gather("1", a);
  net.Out(net.Call("mmc", {b, w}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 1}}), Options()), "mmb mma AG1 W1 mmc");
}

TEST_P(EitherOverlap, T6_2_AWaitEndsWhatItsGroupStartedEarlier) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p = net.Parameter("p", {8, 64});
  const NodeId gw = net.Call("gw", {x}, {64, 64});
  const NodeId reduced = net.Scatter("0", gw);
  const NodeId w = net.Gather("1", p);
  net.Out(reduced, SlotKind::kOutput);
  net.Out(net.Call("mm1", {x, w}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  PlanOptions options = Options();
  options.max_off_path_bytes = 0;  // scatters start at once
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"RS", 1}}), options), "gw RS0 AG1 WR0 W1 mm1");
}

Graph TwoGathers(bool two_groups) {
  Net net;
  const GroupId tp = net.AddGroup("tp", 8);
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p0 = net.Parameter("p0", {8, 64});
  const NodeId p1 = net.Parameter("p1", {8, 64});
  const NodeId h = net.Call("mm0", {x}, {64, 64});
  const NodeId w0 = net.Gather("0", p0);
  const NodeId w1 = net.OnGroup(two_groups ? tp : 0).Gather("1", p1);
  net.Out(net.Call("mm1", {h, w0, w1}, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

TEST_P(EitherOverlap, T6_3_TwoGroupsHideUnderOneProductAtOnce) {
  for (const bool two_groups : {true, false}) {
    const Graph graph = TwoGathers(two_groups);
    const Scheduled scheduled =
        ScheduleStep(graph, Timed(graph, {{"AG", 3}, {"mm0", 3}}), Options());
    ASSERT_TRUE(scheduled.status.ok()) << scheduled.status;
    EXPECT_EQ(HiddenBy(graph, scheduled, "AG0"), "mm0");
    EXPECT_EQ(HiddenBy(graph, scheduled, "AG1"), two_groups ? "mm0" : "");
    EXPECT_EQ(ExposedPs(graph, scheduled, "AG0"), 0);
    EXPECT_EQ(ExposedPs(graph, scheduled, "AG1"), two_groups ? 0 : 3 * kUs);
  }
}

TEST_P(EitherOverlap, T6_12_APartlyHiddenCollectiveSaysWhatIsLeft) {
  const Graph graph = TwoGathers(true);
  const Scheduled scheduled = ScheduleStep(graph, Timed(graph, {{"AG", 5}, {"mm0", 3}}), Options());
  ASSERT_TRUE(scheduled.status.ok()) << scheduled.status;
  // The wait of either gather is a window for the other group.
  EXPECT_EQ(HiddenBy(graph, scheduled, "AG0"), "mm0");
  EXPECT_EQ(ExposedPs(graph, scheduled, "AG0"), 2 * kUs);
  EXPECT_EQ(HiddenBy(graph, scheduled, "AG1"), "mm0 W0");
  EXPECT_EQ(ExposedPs(graph, scheduled, "AG1"), 0);
}

TEST_P(EitherOverlap, AShareOfComputeHides) {
  const Graph graph = TwoGathers(true);
  PlanOptions options = Options();
  options.compute_overlap_ppm = 500'000;
  const Scheduled scheduled = ScheduleStep(graph, Timed(graph, {{"AG", 3}, {"mm0", 3}}), options);
  ASSERT_TRUE(scheduled.status.ok()) << scheduled.status;
  EXPECT_EQ(ExposedPs(graph, scheduled, "AG0"), 3 * kUs / 2);
}

// mm0 AG0 W0 mm1. The gather may start before mm0 if 1,024 bytes more than the order's peak of
// 17,408 are allowed: 8,192 for x, 1,024 for the shard, 9,216 for the collective.
Graph OneGather() {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p = net.Parameter("p", {8, 64});
  const NodeId h = net.Call("mm0", {x}, {64, 64});
  const NodeId w = net.Gather("0", p);
  net.Out(net.Call("mm1", {h, w}, {64, 64}), SlotKind::kOutput);
  return net.Build();
}

bool StartsEarly(int64_t bytes, int64_t ppm, MemoryRule rule, bool upstream) {
  const Graph graph = OneGather();
  PlanOptions options = OverlapOptions(upstream);
  options.max_memory_increase_bytes = bytes;
  options.max_memory_increase_ppm = ppm;
  options.memory_rule = rule;
  return Before(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 1}}), options), "AG0", "mm0");
}

TEST(Overlap, T6_4_MemoryMayGrowByTheLargerOfBytesAndShare) {
  constexpr int64_t kJustEnough = 58'824, kTooLittle = 58'823;  // ppm of 17,408: 1,024 and 1,023
  for (const bool upstream : {false, true}) {
    EXPECT_TRUE(StartsEarly(1'024, 0, MemoryRule::kMax, upstream));
    EXPECT_FALSE(StartsEarly(1'023, 0, MemoryRule::kMax, upstream));
    EXPECT_TRUE(StartsEarly(0, kJustEnough, MemoryRule::kMax, upstream));
    EXPECT_FALSE(StartsEarly(0, kTooLittle, MemoryRule::kMax, upstream));
    EXPECT_TRUE(StartsEarly(kNoLimit, kJustEnough, MemoryRule::kMax, upstream));
    EXPECT_FALSE(StartsEarly(kNoLimit, kTooLittle, MemoryRule::kMax, upstream));
    EXPECT_FALSE(StartsEarly(1'023, kNoLimit, MemoryRule::kMax, upstream));
  }
}

TEST(Overlap, A11_TheSmallerIncreaseCountsIfTheUserSaysSo) {
  EXPECT_FALSE(StartsEarly(1'024, 0, MemoryRule::kMin, false));
  EXPECT_TRUE(StartsEarly(1'024, 58'824, MemoryRule::kMin, false));
  EXPECT_TRUE(StartsEarly(1'024, 0, MemoryRule::kMin, true));  // upstream knows the larger only
}

TEST(Overlap, A11_NoLimitAtAllIsNoLimitAndAnErrorUpstream) {
  EXPECT_TRUE(StartsEarly(kNoLimit, kNoLimit, MemoryRule::kMax, false));
  const Graph graph = OneGather();
  PlanOptions options = OverlapOptions(true);
  options.max_memory_increase_bytes = options.max_memory_increase_ppm = kNoLimit;
  const Scheduled scheduled = ScheduleStep(graph, Timed(graph, {{"mm", 1}}), options);
  EXPECT_EQ(scheduled.status.code(), absl::StatusCode::kInvalidArgument) << scheduled.status;
}

// Between the window and the gather's use, memory is at its highest.
TEST_P(EitherOverlap, T6_5_MemoryIsLookedAtUntilTheFirstUse) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p = net.Parameter("p", {8, 64});
  const NodeId h = net.Call("mm0", {x}, {64, 64});
  const NodeId big = net.Call("big", {h}, {640, 64});
  const NodeId y = net.Call("mm1", {h, big}, {64, 64});
  const NodeId w = net.Gather("0", p);
  net.Out(net.Call("mm2", {y, w}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = Timed(graph, {{"AG", 1}, {"mm0", 1}});
  PlanOptions options = Options();
  options.max_memory_increase_ppm = 0;
  options.max_memory_increase_bytes = kFootprint;
  EXPECT_TRUE(Before(OrderOf(graph, costs, options), "AG0", "mm0"));
  options.max_memory_increase_bytes = kFootprint - 1;
  EXPECT_FALSE(Before(OrderOf(graph, costs, options), "AG0", "mm0"));
}

// Gradients of independent products, each reduced.
Graph Scatters(int count) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  for (int i = 0; i < count; ++i) {
    const std::string name = std::to_string(i);
    net.Out(net.Scatter(name, net.Call("gw" + name, {x}, {64, 64})), SlotKind::kOutput);
  }
  return net.Build();
}

TEST_P(EitherOverlap, T6_6_ScattersStartWhenThereAreEnoughBytesOfThem) {
  const Graph graph = Scatters(4);
  const Costs costs = Timed(graph, {{"RS", 1}});
  PlanOptions options = Options();
  options.max_off_path_bytes = 2 * kFootprint;
  EXPECT_EQ(OrderOf(graph, costs, options), "gw0 gw1 RS0 RS1 gw2 gw3 RS2 RS3 WR0 WR1 WR2 WR3");
  options.max_off_path_bytes = kFootprint;
  EXPECT_EQ(OrderOf(graph, costs, options), "gw0 RS0 gw1 RS1 gw2 RS2 gw3 RS3 WR0 WR1 WR2 WR3");
}

// Half of what two scatters have: both are ready when the first may go, but do not fit together.
TEST_P(EitherOverlap, ABatchTakesNoMoreBytesThanItsLimit) {
  const Graph graph = Scatters(4);
  PlanOptions options = Options();
  options.max_off_path_bytes = kFootprint * 3 / 2;
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"RS", 1}}), options),
            "gw0 gw1 RS0 gw2 RS1 gw3 RS2 RS3 WR0 WR1 WR2 WR3");
}

// Two keys take turns in the step; a window for two launches.
TEST_P(EitherOverlap, LaunchesOfOneKeyStartTogetherIfBucketingHasPriority) {
  Net net;
  NodeId h = net.Input("x", {64, 64});
  std::vector<NodeId> shards;
  for (int i = 0; i < 3; ++i) {
    net.Typed(i == 1 ? DType::kF32 : DType::kBF16);
    shards.push_back(net.Parameter("p" + std::to_string(i), {8, 64}));
  }
  h = net.Call("mm0", {h}, {64, 64});
  for (int i = 0; i < 3; ++i) {
    net.Typed(i == 1 ? DType::kF32 : DType::kBF16);
    const std::string name = std::to_string(i + 1);
    h = net.Call("mm" + name, {h, net.Gather(name, shards[static_cast<size_t>(i)])}, {64, 64});
  }
  net.Out(h, SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = Timed(graph, {{"AG", 1}, {"mm0", 2}});
  for (const bool together : {true, false}) {
    PlanOptions options = Options();
    options.prioritize_bucketing = together;
    const std::string order = OrderOf(graph, costs, options);
    EXPECT_TRUE(Before(order, "AG1", "mm0")) << order;
    EXPECT_EQ(Before(order, "AG3", "mm0"), together) << order;
    EXPECT_EQ(Before(order, "AG2", "mm0"), !together) << order;
  }
}

TEST_P(EitherOverlap, WhatLeadsToACollectiveGoesBeforeOtherStepsOfItsCompute) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p = net.Parameter("p", {8, 64});
  const NodeId h = net.Call("mm0", {x}, {64, 64});
  const NodeId r = net.Call("r", {h}, {64, 64});
  const NodeId w = net.Gather("0", net.View("v", p));
  net.Out(net.Call("mm1", {r, w}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}}), Options()), "mm0 v r AG0 W0 mm1");
}

TEST_P(EitherOverlap, WhatNoComputeNeedsWaitsForItsPlaceInTheStep) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId h = net.Call("mm0", {x}, {64, 64});
  const NodeId c = net.Call("c", {x}, {64, 64});
  net.Out(net.Scatter("0", c), SlotKind::kOutput);
  net.Out(net.Call("mm1", {h}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"RS", 1}}), Options()), "mm0 mm1 c RS0 WR0");
}

// The second gather is of what the first has gathered.
TEST_P(EitherOverlap, NothingIsStartedBehindAWaitThatTheSameWindowHides) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p = net.Parameter("p", {8, 64});
  const NodeId h = net.Call("mm0", {x}, {64, 64});
  const NodeId w = net.Gather("2", net.Gather("1", p));
  net.Out(net.Call("mm1", {h, w}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_EQ(OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm0", 5}}), Options()),
            "AG1 mm0 W1 AG2 W2 mm1");
}

TEST_P(EitherOverlap, T6_7_AnExposedWaitIsPutOffUntilMemoryIsShort) {
  const Graph graph = Scatters(4);
  const Costs costs = Timed(graph, {{"RS", 1}});
  PlanOptions options = Options();
  options.max_off_path_bytes = 0;
  const std::string roomy = OrderOf(graph, costs, options);
  EXPECT_TRUE(Before(roomy, "gw3", "WR0")) << roomy;
  options.max_memory_increase_bytes = options.max_memory_increase_ppm = 0;
  const std::string tight = OrderOf(graph, costs, options);
  // Upstream frees a scatter's input at its start, so that nothing is ever short.
  EXPECT_EQ(Before(tight, "WR0", "gw3"), !GetParam()) << tight;
}

TEST_P(EitherOverlap, T6_13_TheSameStepGivesTheSameOrder) {
  for (const char* name : {"llama3_debug_fsdp8.bw", "moe_debug_fsdp4_ep4.fw"}) {
    const CapturedGraph a = Captured(name), b = Captured(name);
    const auto order = [&](const CapturedGraph& captured) {
      CostProfile profile;
      auto costs = Costs::FromFile(captured.graph, captured.costs, profile);
      EXPECT_TRUE(costs.ok()) << costs.status();
      Scheduled scheduled = ScheduleStep(captured.graph, *costs, Options());
      EXPECT_TRUE(scheduled.status.ok()) << scheduled.status;
      return std::move(scheduled.plan.order);
    };
    EXPECT_EQ(order(a), order(b)) << name;
  }
}

// Which mates a launch has while its kind is in its key, or not.
TEST(Overlap, A11_AnAllReduceIsNoMateOfAReduceScatter) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId rs = net.Start(CollectiveKind::kReduceScatter, "RS0", x, ReduceOp::kSum);
  const NodeId ar = net.Start(CollectiveKind::kAllReduce, "AR0", x, ReduceOp::kSum);
  net.Out(net.Wait("WA0", ar), SlotKind::kOutput);
  net.Out(net.Wait("WR0", rs), SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = Timed(graph, {{"RS", 3}, {"AR", 3}}, 1.0);
  for (const bool upstream : {false, true}) {
    const Scheduled scheduled = ScheduleStep(graph, costs, OverlapOptions(upstream));
    ASSERT_TRUE(scheduled.status.ok()) << scheduled.status;
    EXPECT_EQ(ExposedPs(graph, scheduled, "RS0"), 3 * kUs);
    EXPECT_EQ(ExposedPs(graph, scheduled, "AR0"), (upstream ? 2 : 3) * kUs);
  }
}

// All-reduces that no pass may merge never share a launch.
TEST(Overlap, WhatIsNotMergedPaysItsLatency) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId a = net.Start(CollectiveKind::kAllReduce, "AR0", x, ReduceOp::kSum);
  const NodeId b = net.Start(CollectiveKind::kAllReduce, "AR1", x, ReduceOp::kSum);
  net.Out(net.Wait("WA0", a), SlotKind::kOutput);
  net.Out(net.Wait("WA1", b), SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = Timed(graph, {{"AR", 3}}, 1.0);
  for (const Numerics numerics : {Numerics::kFree, Numerics::kEagerOrder}) {
    PlanOptions options = OverlapOptions();
    options.numerics = numerics;
    const Scheduled scheduled = ScheduleStep(graph, costs, options);
    ASSERT_TRUE(scheduled.status.ok()) << scheduled.status;
    EXPECT_EQ(ExposedPs(graph, scheduled, "AR1"), (numerics == Numerics::kFree ? 2 : 3) * kUs);
  }
}

// The scatter of gw0 is started under mma. Upstream still counts its bytes when gw1's is ready.
TEST(Overlap, A11_APrefetchedScatterNoLongerCounts) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const auto scatter = [&](const std::string& name) {
    net.Out(net.Scatter(name, net.Call("gw" + name, {x}, {64, 64})), SlotKind::kOutput);
  };
  scatter("0");
  net.Out(net.Call("mma", {x}, {64, 64}), SlotKind::kOutput);
  scatter("1");
  scatter("2");
  const Graph graph = net.Build();
  const Costs costs = Timed(graph, {{"RS", 1}, {"mma", 1}});
  for (const bool upstream : {false, true}) {
    PlanOptions options = OverlapOptions(upstream);
    options.max_off_path_bytes = 2 * kFootprint;
    const std::string order = OrderOf(graph, costs, options);
    EXPECT_TRUE(Before(order, "RS0", "mma")) << order;
    EXPECT_EQ(Before(order, "RS1", "gw2"), upstream) << order;
  }
}

// The gather is hidden after its wait was queued as exposed.
TEST(Overlap, A11_AWaitMovesUpInItsQueueOnceItIsHidden) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p = net.Parameter("p", {8, 64});
  const NodeId h = net.Call("mm0", {x}, {64, 64});
  const NodeId w = net.Gather("1", p);
  const NodeId r = net.Call("r", {h}, {64, 64});
  net.Out(net.Call("mm1", {r, w}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  const Costs costs = Timed(graph, {{"AG", 1}, {"mm", 1}});
  EXPECT_EQ(OrderOf(graph, costs, OverlapOptions(false)), "AG1 mm0 W1 r mm1");
  EXPECT_EQ(OrderOf(graph, costs, OverlapOptions(true)), "AG1 mm0 r W1 mm1");
}

TEST(Overlap, A11_ABatchStandsInTheOrderOfItsKeys) {
  const Graph graph = Scatters(4);
  const Costs costs = Timed(graph, {{"RS", 1}});
  for (const bool upstream : {false, true}) {
    PlanOptions options = OverlapOptions(upstream);
    options.max_off_path_bytes = 4 * kFootprint;
    EXPECT_EQ(OrderOf(graph, costs, options),
              upstream ? "gw0 gw1 gw2 gw3 RS0 RS1 RS3 RS2 WR0 WR1 WR3 WR2"
                       : "gw0 gw1 gw2 gw3 RS0 RS1 RS2 RS3 WR0 WR1 WR2 WR3");
  }
}

// In-place ops and collectives that nobody waits for keep their place among their users.
TEST_P(EitherOverlap, OrderThatIsNotDataIsKept) {
  Net net;
  const NodeId x = net.Input("x", {64, 64});
  const NodeId p = net.Parameter("p", {8, 64});
  const NodeId h = net.Call("mm0", {x}, {64, 64});
  const NodeId changed = net.Mutate("add_", p);
  const NodeId w = net.Gather("0", changed);
  net.Mutate("again_", p);
  const NodeId w1 = net.Gather("1", p);
  net.Start(CollectiveKind::kAllReduce, "AR_alone", h, ReduceOp::kSum);
  net.Out(net.Call("mm1", {h, w, w1}, {64, 64}), SlotKind::kOutput);
  const Graph graph = net.Build();
  const std::string order =
      OrderOf(graph, Timed(graph, {{"AG", 1}, {"mm", 3}, {"AR", 1}}), Options());
  EXPECT_TRUE(Before(order, "add_", "AG0")) << order;
  EXPECT_TRUE(Before(order, "W0", "again_")) << order;
  EXPECT_TRUE(Before(order, "again_", "AG1")) << order;
}

TEST_P(EitherOverlap, EveryCapturedStepIsOrderedLegallyAndSummedUp) {
  for (const std::string& name : CapturedNames()) {
    const CapturedGraph captured = Captured(name);
    if (GetParam() && captured.graph.size() > 5'000) continue;  // upstream takes its time
    auto costs = Costs::FromFile(captured.graph, captured.costs, CostProfile());
    ASSERT_TRUE(costs.ok()) << costs.status();
    // The pipeline verifies.
    const Scheduled scheduled = ScheduleStep(captured.graph, *costs, Options());
    ASSERT_TRUE(scheduled.status.ok()) << name << ": " << scheduled.status;
    EXPECT_EQ(testing::HasDiagnostic(scheduled.plan, "overlap-summary"),
              !captured.graph.collectives().empty())
        << name;
    std::vector<int32_t> place(static_cast<size_t>(captured.graph.size()));
    for (size_t i = 0; i < scheduled.plan.order.size(); ++i) {
      place[static_cast<size_t>(scheduled.plan.order[i].id)] = static_cast<int32_t>(i);
    }
    EXPECT_EQ(scheduled.overlap.size(), captured.graph.collectives().size()) << name;
    for (const LaunchOverlap& overlap : scheduled.overlap) {
      const Collective& c = captured.graph.collective(overlap.collective);
      EXPECT_LE(overlap.exposed_ps, overlap.est_ps);
      for (const NodeId n : overlap.hidden_by) {
        EXPECT_LT(place[static_cast<size_t>(c.start)], place[static_cast<size_t>(n)]) << name;
        EXPECT_LT(place[static_cast<size_t>(n)], place[static_cast<size_t>(c.wait)]) << name;
      }
    }
  }
}

}  // namespace
}  // namespace bucketd
