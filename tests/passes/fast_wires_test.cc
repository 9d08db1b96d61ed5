// Orders for wires that are faster than said, and what they are good for.
#include "passes/auto/fast_wires.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "passes/auto/to_plan.h"
#include "passes/io/profile_json.h"
#include "passes/modes/pass_registry.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/ladder.h"
#include "tests/passes/perturbed_costs.h"

namespace bucketd::testing {
namespace {

PlanOptions Free() {
  PlanOptions options;
  options.mode = "auto";
  options.numerics = Numerics::kFree;
  return options;
}

TEST(FastWires, OrdersTakeWhatTheSimulatorSaysUnderFasterWires) {
  const PlanOptions options = Free();
  int64_t orders = 0;
  for (uint32_t seed = 6000; seed < 6000 + Seeds(40); ++seed) {
    const Graph graph = RandomStep(seed).Build();
    const Costs costs = CostsOf(graph);
    Plan plan = ProgramOrder(graph);
    PassContext context(graph, costs, options);
    context.program_order = Simulate(graph, plan, costs).prediction;
    ASSERT_TRUE((*MakePass("tag-collectives"))->Run(context, plan).ok());
    const search::Problem problem = *search::Contract(context);
    const int64_t limit = context.program_order.peak_bytes;
    const Costs fast = costs.WithWires(graph, std::vector<double>(graph.groups().size(), 0.75));
    const search::FastWires wires = search::WiresToTry(problem)[0];
    for (const search::FastOrder& found :
         OrdersForFastWires(problem, wires, limit, 3, search::Decoded())) {
      if (found.decoded.order.empty()) continue;
      ++orders;
      plan = search::PlanOf(context, problem, found.decoded);
      const Prediction simulated = Simulate(graph, plan, fast).prediction;
      EXPECT_EQ(simulated.total_ps, found.decoded.figures.total_ps) << "seed " << seed;
      EXPECT_EQ(simulated.peak_bytes, found.decoded.figures.peak_bytes) << "seed " << seed;
      EXPECT_LE(simulated.peak_bytes, limit) << "seed " << seed;
    }
  }
  EXPECT_GT(orders, Share(40));
}

TEST(FastWires, LargeStepsOfSeveralGroupsAreSearchedOnceMore) {
  for (const auto& [name, searches] : {std::tuple{"llama3_8b_fsdp4_tp2.fw", size_t{2}},
                                       {"llama3_8b_fsdp8.fw", 1},
                                       {"llama3_debug_fsdp4_tp2.fw", 1}}) {
    const CapturedGraph captured = Captured(name);
    const Costs costs =
        *Costs::FromFile(captured.graph, captured.costs, *FindProfile("slow_network"));
    const PlanOptions options = Free();
    Plan plan = ProgramOrder(captured.graph);
    PassContext context(captured.graph, costs, options);
    context.program_order = Simulate(captured.graph, plan, costs).prediction;
    ASSERT_TRUE((*MakePass("tag-collectives"))->Run(context, plan).ok());
    const search::Problem problem = *search::Contract(context);
    const std::vector<search::FastWires> wires = search::WiresToTry(problem);
    ASSERT_EQ(wires.size(), searches) << name;
    if (searches == 1) continue;
    std::vector<int64_t> busy_ps(captured.graph.groups().size(), 0);
    for (const Collective& c : captured.graph.collectives()) {
      busy_ps[static_cast<size_t>(c.group)] += costs.node_ps(c.start);
    }
    for (size_t g = 0; g < busy_ps.size(); ++g) {
      const bool busiest = busy_ps[g] == *std::max_element(busy_ps.begin(), busy_ps.end());
      EXPECT_EQ(wires[1].times[g], busiest ? search::kBusiestWires : 1.0) << "group " << g;
    }
  }
}

// How much longer the step takes in the plan made from costs that are off, per thousand.
int64_t LossOf(const CapturedGraph& captured, const CostProfile& profile, uint64_t seed) {
  const Costs truth = *Costs::FromFile(captured.graph, captured.costs, profile);
  const Costs wrong = *PerturbedCosts(captured, profile, seed, 0.3);
  const Plan right = *MakePlan(captured.graph, truth, Free());
  const Plan made = *MakePlan(captured.graph, wrong, Free());
  const int64_t total = Simulate(captured.graph, made, truth).prediction.total_ps;
  return (total - right.prediction.total_ps) / (right.prediction.total_ps / 1000);
}

// Said to be bound by wires, these steps are not.
TEST(FastWires, APlanForWiresThatWereSaidToBeSlowIsGoodOnFasterOnes) {
  for (const auto& [graph, profile, seed] :
       {std::tuple{"llama3_8b_fsdp4_tp2.bw", "small_batch", uint64_t{1}},
        {"llama3_8b_fsdp4_tp2.bw", "small_batch", 8},
        {"llama3_8b_fsdp4_tp2.bw", "small_batch", 14},
        {"llama3_8b_fsdp4_tp2.fw", "slow_network", 16},
        {"llama3_8b_fsdp8.joint", "slow_network", uint64_t{1}},
        {"llama3_debug_fsdp4_tp2.fw", "h100_launch", uint64_t{3}}}) {
    EXPECT_LE(LossOf(Captured(graph), *FindProfile(profile), seed), 30) << graph << " " << profile;
  }
}

}  // namespace
}  // namespace bucketd::testing
