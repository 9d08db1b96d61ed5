// The front of step time against peak memory, and whether a plan in use is given up for a new one.
#include "passes/pareto.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "passes/io/plan_json.h"
#include "passes/io/profile_json.h"
#include "passes/modes/pass_registry.h"
#include "passes/plan/verify.h"
#include "passes/planner.h"
#include "passes/replan.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/ladder.h"

namespace bucketd::testing {
namespace {

using ::testing::HasSubstr;

PlanOptions Auto(int32_t effort) {
  PlanOptions options;
  options.mode = "auto";
  options.numerics = Numerics::kFree;
  options.effort = effort;
  return options;
}

std::vector<ParetoPoint> Front(const Graph& graph, const Costs& costs, const PlanOptions& options) {
  absl::StatusOr<std::vector<ParetoPoint>> front = ParetoFront(graph, costs, options);
  EXPECT_TRUE(front.ok()) << front.status();
  return front.ok() ? *std::move(front) : std::vector<ParetoPoint>();
}

Plan Make(const Graph& graph, const Costs& costs, const PlanOptions& options) {
  absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : ProgramOrder(graph);
}

// Some point has neither more memory nor more time.
bool Covers(const std::vector<ParetoPoint>& front, const Prediction& p) {
  for (const ParetoPoint& point : front) {
    const Prediction& ours = point.plan.prediction;
    if (ours.peak_bytes <= p.peak_bytes && ours.total_ps <= p.total_ps) return true;
  }
  return false;
}

TEST(Pareto, EveryPointTradesMemoryForTimeAndIsMadeAgainByItsLimit) {
  int64_t points = 0;
  for (uint32_t seed = 2000; seed < 2000 + Seeds(40); ++seed) {
    const Graph graph = RandomStep(seed).Build(seed % 10 != 9);
    const Costs costs = CostsOf(graph);
    const std::vector<ParetoPoint> front = Front(graph, costs, Auto(2));
    ASSERT_FALSE(front.empty());
    points += static_cast<int64_t>(front.size());
    for (size_t i = 0; i < front.size(); ++i) {
      const Plan& plan = front[i].plan;
      EXPECT_TRUE(VerifyPlan(graph, plan).ok()) << "seed " << seed;
      EXPECT_EQ(PlanToJson(graph, Make(graph, costs, front[i].options)), PlanToJson(graph, plan));
      if (i == 0) continue;
      const Prediction& before = front[i - 1].plan.prediction;
      EXPECT_GT(plan.prediction.peak_bytes, before.peak_bytes) << "seed " << seed;
      EXPECT_LT(plan.prediction.total_ps, before.total_ps) << "seed " << seed;
    }
  }
  EXPECT_GT(points, Share(45));
}

TEST(Pareto, NoPlanOfAnyModeAndLimitLiesLeftAndBelow) {
  const std::vector<std::string> names = {"llama3_debug_fsdp8.bw", "moe_debug_fsdp4_ep4.bw"};
  for (const std::string& name : Ladder(names)) {
    const CapturedGraph captured = Captured(name);
    const absl::StatusOr<Costs> costs =
        Costs::FromFile(captured.graph, captured.costs, *FindProfile("slow_network"));
    ASSERT_TRUE(costs.ok()) << costs.status();
    const std::vector<ParetoPoint> front = Front(captured.graph, *costs, Auto(3));
    EXPECT_TRUE(Covers(front, front[0].plan.program_order));
    for (const ModeInfo& mode : AllModes()) {
      if (mode.name == "manual" || mode.name == "auto") continue;
      for (const int64_t ppm : {1'000'000, 1'050'000, 2'000'000}) {
        PlanOptions options = Auto(3);
        options.mode = std::string(mode.name);
        options.memory_limit_ppm = ppm;
        EXPECT_TRUE(Covers(front, Make(captured.graph, *costs, options).prediction))
            << name << " " << mode.name << " " << ppm;
      }
    }
  }
}

TEST(Pareto, WithFewPlansNoOtherModesPlanLiesLeftAndBelow) {
  for (uint32_t seed = 2000; seed < 2000 + Seeds(120); ++seed) {
    const Graph graph = RandomStep(seed).Build();
    const Costs costs = CostsOf(graph);
    const absl::StatusOr<std::vector<ParetoPoint>> front = ParetoFront(graph, costs, Auto(1), 8);
    ASSERT_TRUE(front.ok()) << front.status();
    for (const ModeInfo& mode : AllModes()) {
      if (mode.name == "manual" || mode.name == "auto") continue;
      PlanOptions options = Auto(1);
      options.mode = std::string(mode.name);
      options.memory_limit_ppm = 1'050'000;
      const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
      if (!plan.ok()) continue;  // no blocks
      EXPECT_TRUE(Covers(*front, plan->prediction)) << "seed " << seed << " " << mode.name;
    }
  }
}

TEST(Pareto, ResidentBytesCountIntoTheLimitsAndNotIntoPeaks) {
  const Graph graph = RandomStep(2001).Build();
  const Costs costs = CostsOf(graph);
  PlanOptions options = Auto(2);
  options.resident_bytes = int64_t{1} << 40;
  for (const ParetoPoint& point : Front(graph, costs, options)) {
    EXPECT_LT(point.plan.prediction.peak_bytes, options.resident_bytes);
    if (point.options.memory_limit_bytes == 0) continue;
    EXPECT_LE(point.plan.prediction.peak_bytes + options.resident_bytes,
              point.options.memory_limit_bytes);
  }
}

class Replan : public ::testing::Test {
 protected:
  Replan() { fresh_ = Make(graph_, costs_, options_); }
  std::string WhyNot(const Plan& pinned) {
    return WhyNotPinned(graph_, costs_, options_, pinned, fresh_);
  }

  const Graph graph_ = Forward(3, 2);
  const Costs costs_ = CostsOf(graph_);
  PlanOptions options_ = Auto(3);
  Plan fresh_;
};

TEST_F(Replan, APlanThatKeepsWhatIsAskedForMayStay) {
  EXPECT_EQ(WhyNot(fresh_), "");
  Plan other = fresh_;
  other.mode = "greedy";
  EXPECT_EQ(WhyNot(other), "");
}

TEST_F(Replan, APlanThatPromisesSomethingElseMayNot) {
  Plan other = fresh_;
  other.numerics = Numerics::kExact;
  EXPECT_THAT(WhyNot(other), HasSubstr("numerics exact"));
  other = fresh_;
  other.backend = "gloo";
  EXPECT_THAT(WhyNot(other), HasSubstr("gloo"));
}

TEST_F(Replan, APlanAboveTheLimitMayStayOnlyIfTheNewOneTakesNoLess) {
  PlanOptions lavish = options_;
  lavish.memory_limit_ppm = 4'000'000;
  const Plan large = Make(graph_, costs_, lavish);
  ASSERT_GT(large.prediction.peak_bytes, fresh_.prediction.peak_bytes);
  options_.memory_limit_bytes = fresh_.prediction.peak_bytes;
  EXPECT_THAT(WhyNot(large), HasSubstr("the limit is"));
  options_.memory_limit_bytes = 1;
  EXPECT_EQ(WhyNot(fresh_), "");
}

TEST_F(Replan, ThePlanThatStaysIsShownUnderTheCostsOfNow) {
  CostProfile slow;
  slow.busbw_scale = 0.05;
  Mesh mesh;
  for (const Group& group : graph_.groups())
    mesh.dims.push_back({group.mesh_dim, group.size, 0, ""});
  const absl::StatusOr<Costs> now = Costs::FromDeviceModel(graph_, mesh, slow);
  ASSERT_TRUE(now.ok()) << now.status();
  const Plan next = Make(graph_, *now, options_);
  const Plan shown = UnderCostsOf(graph_, *now, next, fresh_);
  EXPECT_EQ(shown.order, fresh_.order);
  EXPECT_EQ(shown.prediction.total_ps, Simulate(graph_, fresh_, *now).prediction.total_ps);
  EXPECT_NE(shown.prediction.total_ps, fresh_.prediction.total_ps);
  EXPECT_EQ(shown.program_order.total_ps, next.program_order.total_ps);
  EXPECT_EQ(shown.lower_bound_ps, next.lower_bound_ps);
}

}  // namespace
}  // namespace bucketd::testing
