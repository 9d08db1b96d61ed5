// Orders for wires that are faster or slower than their nominal costs, and what they are good for.
#include "passes/auto/other_wires.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "passes/auto/to_plan.h"
#include "passes/modes/pass_registry.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/ladder.h"

namespace bucketd::testing {
namespace {

PlanOptions Free() {
  PlanOptions options;
  options.mode = "auto";
  options.numerics = Numerics::kFree;
  return options;
}

class OtherWires : public ::testing::TestWithParam<double> {};

TEST_P(OtherWires, OrdersTakeWhatTheSimulatorSaysUnderThem) {
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
    const Costs other =
        costs.WithWires(graph, std::vector<double>(graph.groups().size(), GetParam()));
    for (const search::OtherOrder& found :
         OrdersForWires(problem, GetParam(), limit, 3, search::Decoded())) {
      if (found.decoded.order.empty()) continue;
      ++orders;
      plan = search::PlanOf(context, problem, found.decoded);
      const Prediction simulated = Simulate(graph, plan, other).prediction;
      EXPECT_EQ(simulated.total_ps, found.decoded.figures.total_ps) << "seed " << seed;
      EXPECT_EQ(simulated.peak_bytes, found.decoded.figures.peak_bytes) << "seed " << seed;
      EXPECT_LE(simulated.peak_bytes, limit) << "seed " << seed;
    }
  }
  EXPECT_GT(orders, Share(40));
}

INSTANTIATE_TEST_SUITE_P(FasterAndSlower, OtherWires, ::testing::Values(0.75, 1.33));

}  // namespace
}  // namespace bucketd::testing
