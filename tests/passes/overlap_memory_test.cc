// Memory as the overlap scheduler tracks it, and limits on what a plan may take.
#include "passes/pass/overlap/overlap_memory.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/passes/overlap_test_util.h"

namespace bucketd::overlap {
namespace {

using bucketd::testing::Net;

// A graph with its tracker; steps are nodes.
struct Tracked {
  explicit Tracked(Graph g, bool until_start = false)
      : graph(std::move(g)),
        costs(bucketd::testing::Timed(graph, {})),
        context(graph, costs, options) {
    auto found = FindConstraints(graph);
    EXPECT_TRUE(found.ok()) << found.status();
    context.constraints = *std::move(found);
    steps = std::make_unique<OverlapGraph>(context, OverlapPolicy(), ProgramOrder(graph));
    uses = std::make_unique<StorageUses>(graph, *steps, until_start);
  }

  // Running values after each step of this order, and the peak last.
  std::vector<int64_t> Run(const std::vector<NodeId>& order) const {
    MemoryTracker tracker(*uses);
    std::vector<int64_t> values = {tracker.now()};
    for (const NodeId n : order) {
      tracker.Schedule(n);
      values.push_back(tracker.now());
    }
    values.push_back(tracker.peak());
    return values;
  }

  Graph graph;
  PlanOptions options;
  Costs costs;
  PassContext context;
  std::unique_ptr<OverlapGraph> steps;
  std::unique_ptr<StorageUses> uses;
};

using Values = std::vector<int64_t>;

TEST(OverlapMemory, T9_1_TheExampleOfTheSpecification) {
  Net net;
  net.Typed(DType::kU8);
  const NodeId p = net.Parameter("p", {4});
  const NodeId a = net.Call("a", {p}, {8});
  const NodeId b = net.View("b", a);
  const NodeId c = net.Call("c", {b}, {2});
  net.Out(c, SlotKind::kOutput);
  EXPECT_EQ(Tracked(net.Build()).Run({p, a, b, c}), (Values{4, 4, 12, 12, 6, 14}));
}

TEST(OverlapMemory, T9_2_AViewAllocatesNothingAndKeepsItsBaseAlive) {
  Net net;
  net.Typed(DType::kU8);
  const NodeId x = net.Input("x", {8});
  const NodeId v = net.View("v", x);
  const NodeId a = net.Call("a", {x}, {1});
  const NodeId b = net.Call("b", {v}, {2});
  net.Out(a, SlotKind::kOutput);
  net.Out(b, SlotKind::kOutput);
  EXPECT_EQ(Tracked(net.Build()).Run({x, v, a, b}), (Values{8, 8, 8, 9, 3, 11}));
}

TEST(OverlapMemory, T9_3_ParametersStayInputsGo) {
  for (const Role role : {Role::kParameter, Role::kBuffer, Role::kInput, Role::kSaved}) {
    Net net;
    net.Typed(DType::kU8);
    const NodeId x = net.Input("x", {8}, role, role == Role::kParameter ? "x" : "");
    const NodeId a = net.Call("a", {x}, {1});
    net.Out(a, SlotKind::kOutput);
    const bool stays = role == Role::kParameter || role == Role::kBuffer;
    EXPECT_EQ(Tracked(net.Build()).Run({x, a}), (Values{8, 8, stays ? 9 : 1, 9}));
  }
}

TEST(OverlapMemory, T9_4_AConsumerThatComesEarlierLowersThePeak) {
  Net net;
  net.Typed(DType::kU8);
  const NodeId x = net.Input("x", {1});
  const NodeId a = net.Call("a", {x}, {100});
  const NodeId b = net.Call("b", {x}, {50});
  const NodeId c = net.Call("c", {a}, {1});
  const NodeId d = net.Call("d", {b}, {1});
  net.Out(c, SlotKind::kOutput);
  net.Out(d, SlotKind::kOutput);
  const Tracked tracked(net.Build());
  EXPECT_EQ(tracked.Run({x, a, b, c, d}).back(), 151);
  EXPECT_EQ(tracked.Run({x, a, c, b, d}).back(), 102);
}

TEST(OverlapMemory, T9_5_AResultThatNobodyReadsStays) {
  Net net;
  net.Typed(DType::kU8);
  const NodeId x = net.Input("x", {1});
  const NodeId dead = net.Call("dead", {x}, {10});
  const NodeId a = net.Call("a", {x}, {1});
  net.Out(a, SlotKind::kOutput);
  EXPECT_EQ(Tracked(net.Build()).Run({x, dead, a}), (Values{1, 1, 11, 11, 12}));
}

TEST(OverlapMemory, T9_8_AScattersInputLivesUntilItsWaitAndUpstreamUntilItsStart) {
  Net net;
  net.Typed(DType::kU8);
  const NodeId x = net.Input("x", {64});
  const NodeId start = net.Start(CollectiveKind::kReduceScatter, "RS0", x, ReduceOp::kSum);
  const NodeId wait = net.Wait("WR0", start);
  net.Out(wait, SlotKind::kOutput);
  const Graph graph = net.Build();
  EXPECT_EQ(Tracked(graph).Run({x, start, wait}), (Values{64, 64, 72, 8, 72}));
  EXPECT_EQ(Tracked(graph, true).Run({x, start, wait}), (Values{64, 64, 8, 8, 72}));
}

// Values after frees, as torch's scheduler compares them: x 64, a 164, mm1 10, b 1, mm2 5.
TEST(OverlapMemory, TheBaselineIsOfValuesAfterFrees) {
  Net net;
  net.Typed(DType::kU8);
  const NodeId x = net.Input("x", {64});
  const NodeId a = net.Call("a", {x}, {100});
  const NodeId mm1 = net.Call("mm1", {x, a}, {10});
  const NodeId b = net.Call("b", {mm1}, {1});
  const NodeId mm2 = net.Call("mm2", {b}, {5});
  net.Out(mm2, SlotKind::kOutput);
  const Tracked tracked(net.Build());
  EXPECT_EQ(tracked.Run({x, a, mm1, b, mm2}), (Values{64, 64, 164, 10, 1, 5, 174}));
  const MemoryBaseline baseline(*tracked.steps, *tracked.uses);
  EXPECT_EQ(baseline.before_compute, (Values{164, 10}));
  EXPECT_EQ(baseline.peak, 164);
}

// The budget's tree against what it stands for, on every pair of places.
TEST(OverlapMemory, TheBudgetIsTheHighestOfEveryWindow) {
  MemoryBaseline baseline = [] {
    Net net;
    net.Typed(DType::kU8);
    const NodeId x = net.Input("x", {1});
    NodeId h = x;
    for (const int64_t size : {30, 5, 80, 20, 60, 10, 40}) {
      h = net.Call("mm" + std::to_string(size), {net.Call("a", {h}, {size})}, {1});
    }
    net.Out(h, SlotKind::kOutput);
    const Tracked tracked(net.Build());
    return MemoryBaseline(*tracked.steps, *tracked.uses);
  }();
  const auto count = static_cast<int32_t>(baseline.before_compute.size());
  constexpr int64_t kAllowed = 120, kInFlight = 100;
  PrefetchBudget budget(baseline, kAllowed, kInFlight);
  std::vector<int64_t> alive(baseline.before_compute.size(), 0);
  uint32_t random = 12345;
  int32_t exceeded = 0, fitted = 0;
  for (int32_t next = 0; next < count; ++next) {
    for (int round = 0; round < 4; ++round) {
      random = random * 1664525u + 1013904223u;
      const int64_t bytes = 1 + random % 40u;
      const int32_t use = next + static_cast<int32_t>(random >> 16 & 7u) % (count - next + 1);
      bool exceeds = false;
      for (int32_t i = next; i < use; ++i) {
        const int64_t more = alive[Index(i)] + bytes;
        exceeds =
            exceeds || more > kInFlight || baseline.before_compute[Index(i)] + more > kAllowed;
      }
      ASSERT_EQ(budget.Exceeds(use, bytes), exceeds) << next << " " << use << " " << bytes;
      ++(exceeds ? exceeded : fitted);
      if (exceeds) continue;
      budget.Add(use, bytes);
      for (int32_t i = next; i < use; ++i) alive[Index(i)] += bytes;
    }
    budget.Advance();
  }
  EXPECT_GT(exceeded, 2);
  EXPECT_GT(fitted, 2);
}

TEST(OverlapMemory, ALimitInSharesIsSaidWhereItCannotBeHeldAndInBytesRefused) {
  const Graph graph = bucketd::testing::Forward(3, 2);
  const Costs costs = bucketd::testing::Timed(graph, {{"AG", 1}, {"mm", 3}});
  PlanOptions options = bucketd::testing::OverlapOptions();
  options.memory_limit_bytes = 0;
  options.memory_limit_ppm = 500'000;
  const bucketd::testing::Scheduled share = bucketd::testing::ScheduleStep(graph, costs, options);
  ASSERT_TRUE(share.status.ok()) << share.status;
  EXPECT_TRUE(bucketd::testing::HasDiagnostic(share.plan, "memory-limit"));
  options.memory_limit_bytes = share.program_order.peak_bytes / 2;
  EXPECT_EQ(bucketd::testing::ScheduleStep(graph, costs, options).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(OverlapMemory, RunsAgainWithLessRoomUntilThePlansPeakIsWithinTheLimit) {
  const Graph graph = bucketd::testing::Forward(6, 2);
  const Costs costs = bucketd::testing::Timed(graph, {{"AG", 1}, {"mm", 8}});
  PlanOptions options = bucketd::testing::OverlapOptions();
  const bucketd::testing::Scheduled roomy = bucketd::testing::ScheduleStep(graph, costs, options);
  ASSERT_TRUE(roomy.status.ok()) << roomy.status;
  const int64_t peak = Simulate(graph, roomy.plan, costs).prediction.peak_bytes;
  bool kept_some = false;
  for (int64_t limit = roomy.program_order.peak_bytes; limit <= peak; limit += 4'096) {
    options.memory_limit_bytes = limit;
    const bucketd::testing::Scheduled tight = bucketd::testing::ScheduleStep(graph, costs, options);
    ASSERT_TRUE(tight.status.ok()) << tight.status;
    EXPECT_LE(Simulate(graph, tight.plan, costs).prediction.peak_bytes, limit);
    EXPECT_EQ(bucketd::testing::HasDiagnostic(tight.plan, "overlap-reduced"), limit < peak)
        << limit;
    kept_some = kept_some || (limit < peak && tight.plan.order != ProgramOrder(graph).order);
  }
  EXPECT_TRUE(kept_some);
}

}  // namespace
}  // namespace bucketd::overlap
