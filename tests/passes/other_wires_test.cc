// Orders for wires that are faster or slower than their nominal costs, and what they are good for.
#include "passes/auto/other_wires.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "passes/sim/simulator.h"
#include "tests/passes/auto_test_util.h"
#include "tests/passes/contracted.h"
#include "tests/passes/ladder.h"

namespace bucketd::testing {
namespace {

class OtherWires : public ::testing::TestWithParam<double> {};

TEST_P(OtherWires, OrdersTakeWhatTheSimulatorSaysUnderThem) {
  int64_t orders = 0;
  for (uint32_t seed = 6000; seed < 6000 + Seeds(40); ++seed) {
    const Contracted step(RandomStep(seed).Build());
    const int64_t limit = step.context.program_order.peak_bytes;
    const Costs other = step.costs.WithWires(step.graph, GetParam());
    for (const search::Found& found :
         OrdersForWires(step.problem, GetParam(), limit, 3, search::Decoded())) {
      if (found.decoded.order.empty()) continue;
      ++orders;
      const Prediction simulated =
          Simulate(step.graph, step.PlanOf(found.decoded), other).prediction;
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
