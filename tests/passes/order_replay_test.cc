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
#include "passes/modes/pass_registry.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"

namespace bucketd::testing {
namespace {

using search::Action;
using search::Decoded;
using search::Form;
using search::kNever;
using search::OrderReplay;

class Replayed {
 public:
  explicit Replayed(Graph graph)
      : graph_(std::move(graph)),
        costs_(CostsOf(graph_)),
        context_(graph_, costs_, options_),
        plan_(ProgramOrder(graph_)) {
    context_.program_order = Simulate(graph_, plan_, costs_).prediction;
    EXPECT_TRUE((*MakePass("tag-collectives"))->Run(context_, plan_).ok());
    problem_ = *search::Contract(context_);
  }

  const search::Problem& problem() const { return problem_; }
  Decoded ProgramOrderAsWishes() const { return search::OrderOf(graph_, problem_, plan_); }
  int64_t program_order_ps() const { return context_.program_order.total_ps; }

  void ExpectTheSimulatorsFigures(const Decoded& order) const {
    const Plan plan = search::PlanOf(context_, problem_, order);
    const absl::Status legal = VerifyPlan(graph_, plan);
    ASSERT_TRUE(legal.ok()) << legal;
    const Prediction simulated = Simulate(graph_, plan, costs_).prediction;
    EXPECT_EQ(simulated.total_ps, order.figures.total_ps);
    EXPECT_EQ(simulated.peak_bytes, order.figures.peak_bytes);
    // Where the step stands still, some wait says so.
    const bool stalls = std::any_of(order.batches.begin(), order.batches.end(),
                                    [](const search::Batch& batch) { return batch.stalled; });
    EXPECT_EQ(stalls, simulated.exposed_ps > 0);
  }

 private:
  static PlanOptions Free() {
    PlanOptions options;
    options.numerics = Numerics::kFree;
    return options;
  }

  const Graph graph_;
  const Costs costs_;
  const PlanOptions options_ = Free();
  PassContext context_;
  Plan plan_;
  search::Problem problem_;
};

TEST(OrderReplay, ProgramOrderTakesNoLongerThanItDoes) {
  for (uint32_t seed = 7000; seed < 7100; ++seed) {
    SCOPED_TRACE(seed);
    const Replayed step(RandomStep(seed).Build());
    OrderReplay replay(step.problem(), kNever);
    const Decoded* order = replay.Run(step.ProgramOrderAsWishes(), kNever);
    ASSERT_NE(order, nullptr);
    step.ExpectTheSimulatorsFigures(*order);
    EXPECT_LE(order->figures.total_ps, step.program_order_ps());
  }
}

TEST(OrderReplay, EveryOrderOfWishesIsALegalOrder) {
  for (uint32_t seed = 7100; seed < 7300; ++seed) {
    SCOPED_TRACE(seed);
    const Replayed step(RandomStep(seed).Build());
    OrderReplay replay(step.problem(), kNever);
    Decoded wishes = step.ProgramOrderAsWishes();
    std::mt19937 random(seed);
    for (size_t i = wishes.order.size(); i > 1; --i) {
      std::swap(wishes.order[i - 1], wishes.order[random() % i]);
    }
    const Decoded* order = replay.Run(wishes, kNever);
    ASSERT_NE(order, nullptr);
    step.ExpectTheSimulatorsFigures(*order);
    // Sure to take longer, it ends early and says so.
    const int64_t half = order->figures.total_ps / 2;
    EXPECT_GT(replay.Run(wishes, half)->figures.total_ps, half);
  }
}

TEST(OrderReplay, BucketsOfEveryFormTakeWhatTheSimulatorSays) {
  std::vector<int> of_form(4, 0);
  for (uint32_t seed = 7300; seed < 7400; ++seed) {
    SCOPED_TRACE(seed);
    const Replayed step(RandomStep(seed).Build());
    OrderReplay replay(step.problem(), kNever);
    search::Decoder decoder(step.problem());
    search::Settings settings;
    settings.eager = true;
    settings.late_ps = kNever / 2;
    Decoded wishes = decoder.Decode(settings, kNever, nullptr);
    for (search::Batch& batch : wishes.batches) {
      if (batch.members.size() > 1) batch.form = static_cast<Form>(1 + seed % 3);
      ++of_form[static_cast<size_t>(batch.form)];
    }
    const Decoded* order = replay.Run(wishes, kNever);
    ASSERT_NE(order, nullptr);
    step.ExpectTheSimulatorsFigures(*order);
  }
  for (const int batches : of_form) EXPECT_GT(batches, 20);
}

TEST(OrderReplay, CollectivesThatNeedOneAnotherShareNoBucket) {
  Net net(4);
  NodeId x = net.Input("x", {64, 64});
  x = net.Reduce("a", net.Call("k", {x}, {64, 64}));
  x = net.Reduce("b", x);
  net.Out(x, SlotKind::kOutput);
  const Replayed step(net.Build());
  OrderReplay replay(step.problem(), kNever);
  Decoded wishes = step.ProgramOrderAsWishes();
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
