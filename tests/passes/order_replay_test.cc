// Orders that are changed action by action: what they take is what the simulator says, and every
// one of them is legal.
#include "passes/auto/order_replay.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "passes/auto/to_plan.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/contracted.h"

namespace bucketd::testing {
namespace {

using search::Action;
using search::Decoded;
using search::Form;
using search::kNever;
using search::OrderReplay;

Decoded ProgramOrderAsWishes(const Contracted& step) {
  return search::OrderOf(step.graph, step.problem, step.program_order);
}

void ExpectTheSimulatorsFigures(const Contracted& step, const Decoded& order) {
  const absl::Status legal = VerifyPlan(step.graph, step.PlanOf(order));
  ASSERT_TRUE(legal.ok()) << legal;
  const Prediction simulated = step.Simulated(order);
  EXPECT_EQ(simulated.total_ps, order.figures.total_ps);
  EXPECT_EQ(simulated.peak_bytes, order.figures.peak_bytes);
  // Where the step stands still, some wait says so.
  const bool stalls = std::any_of(order.batches.begin(), order.batches.end(),
                                  [](const search::Batch& batch) { return batch.stalled; });
  EXPECT_EQ(stalls, simulated.exposed_ps > 0);
}

TEST(OrderReplay, ProgramOrderTakesNoLongerThanItDoes) {
  for (uint32_t seed = 7000; seed < 7100; ++seed) {
    SCOPED_TRACE(seed);
    const Contracted step(RandomStep(seed).Build());
    OrderReplay replay(step.problem, kNever);
    const Decoded* order = replay.Run(ProgramOrderAsWishes(step), kNever);
    ASSERT_NE(order, nullptr);
    ExpectTheSimulatorsFigures(step, *order);
    EXPECT_LE(order->figures.total_ps, step.context.program_order.total_ps);
  }
}

TEST(OrderReplay, EveryOrderOfWishesIsALegalOrder) {
  for (uint32_t seed = 7100; seed < 7300; ++seed) {
    SCOPED_TRACE(seed);
    const Contracted step(RandomStep(seed).Build());
    OrderReplay replay(step.problem, kNever);
    Decoded wishes = ProgramOrderAsWishes(step);
    std::mt19937 random(seed);
    for (size_t i = wishes.order.size(); i > 1; --i) {
      std::swap(wishes.order[i - 1], wishes.order[random() % i]);
    }
    const Decoded* order = replay.Run(wishes, kNever);
    ASSERT_NE(order, nullptr);
    ExpectTheSimulatorsFigures(step, *order);
    // Sure to take longer, it ends early and says so.
    const int64_t half = order->figures.total_ps / 2;
    EXPECT_GT(replay.Run(wishes, half)->figures.total_ps, half);
  }
}

TEST(OrderReplay, BucketsOfEveryFormTakeWhatTheSimulatorSays) {
  std::vector<int> of_form(4, 0);
  for (uint32_t seed = 7300; seed < 7400; ++seed) {
    SCOPED_TRACE(seed);
    const Contracted step(RandomStep(seed).Build());
    OrderReplay replay(step.problem, kNever);
    search::Decoder decoder(step.problem);
    search::Settings settings;
    settings.slack_ps = search::kForever;
    settings.late_ps = kNever / 2;
    Decoded wishes = decoder.Decode(settings, kNever, nullptr);
    for (search::Batch& batch : wishes.batches) {
      if (batch.members.size() > 1) batch.form = static_cast<Form>(1 + seed % 3);
      ++of_form[static_cast<size_t>(batch.form)];
    }
    const Decoded* order = replay.Run(wishes, kNever);
    ASSERT_NE(order, nullptr);
    ExpectTheSimulatorsFigures(step, *order);
  }
  for (const int batches : of_form) EXPECT_GT(batches, 20);
}

TEST(OrderReplay, CollectivesThatNeedOneAnotherShareNoBucket) {
  Net net(4);
  NodeId x = net.Input("x", {64, 64});
  x = net.Reduce("a", net.Call("k", {x}, {64, 64}));
  x = net.Reduce("b", x);
  net.Out(x, SlotKind::kOutput);
  const Contracted step(net.Build());
  OrderReplay replay(step.problem, kNever);
  Decoded wishes = ProgramOrderAsWishes(step);
  ASSERT_EQ(wishes.batches.size(), 2u);
  EXPECT_NE(replay.Run(wishes, kNever), nullptr);
  wishes.batches[0] = {{0, 1}, Form::kGrouped, false};
  wishes.batches.pop_back();
  std::erase_if(wishes.order,
                [](const Action& a) { return a.kind != Action::Kind::kRun && a.id == 1; });
  EXPECT_EQ(replay.Run(wishes, kNever), nullptr);
}

}  // namespace
}  // namespace bucketd::testing
