// Mode auto against the best plan there is, on steps that are small enough to be solved exactly.
// tests/bench/bound_table says more.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "gtest/gtest.h"

#include "passes/planner.h"
#include "passes/sim/auto_report.h"
#include "passes/sim/simulator.h"
#include "tests/passes/exact_solver.h"
#include "tests/passes/tiny_steps.h"

namespace bucketd::testing {
namespace {

TEST(TinySteps, AutoIsHardlySlowerThanTheBestPlanThereIs) {
  for (size_t kind = 0; kind < kTinyKinds.size(); ++kind) {
    int solved = 0, equal = 0, found = 0;
    double above = 0.0, most = 0.0;
    for (uint32_t seed = 90'000; seed < 90'025; ++seed) {
      TinyStep step(kind, seed);
      const Graph graph = step.Build();
      const Costs costs = step.CostsOf(graph);
      PlanOptions options;
      options.mode = "auto";
      options.numerics = Numerics::kFree;
      options.memory_limit_ppm = step.memory_limit_ppm();
      const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const int64_t limit = Simulate(graph, ProgramOrder(graph), costs).prediction.peak_bytes *
                            options.memory_limit_ppm / 1'000'000;
      if (plan->prediction.peak_bytes > limit) continue;
      const int64_t total = plan->prediction.total_ps;
      const std::optional<Optimum> best =
          FindOptimum(graph, costs, total, limit, /*steps=*/2'000'000);
      if (!best) continue;
      ++solved;
      const std::optional<AutoReport> report = ReportOf(*plan);
      ASSERT_TRUE(report);
      // The fastest order that it came upon; below the best plan's time it was over the limit.
      const int64_t seen = std::min(total, report->fastest_ps);
      const int64_t fastest = seen < best->total_ps ? total : seen;
      if (fastest <= best->total_ps + best->total_ps / 2000) ++found;
      const double over = static_cast<double>(total) / static_cast<double>(best->total_ps) - 1.0;
      if (over < 0.0005) ++equal;  // so near to the bound it looks no further
      above += over;
      most = std::max(most, over);
    }
    EXPECT_GE(solved, 10) << kTinyKinds[kind];
    EXPECT_EQ(found, solved) << kTinyKinds[kind];
    // What a sturdier plan may cost included.
    EXPECT_GE(equal, solved * 88 / 100) << kTinyKinds[kind];
    EXPECT_LE(above / solved, 0.002) << kTinyKinds[kind];
    EXPECT_LE(most, 0.02) << kTinyKinds[kind];
  }
}

}  // namespace
}  // namespace bucketd::testing
