// How much of a gap is the lower bound's slack: mode auto and both bounds against the best plan
// there is, on steps that are small enough to be solved exactly.
//
//   bound_table [STEPS_OF_A_KIND]     default 500
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "absl/strings/numbers.h"

#include "passes/planner.h"
#include "passes/sim/sharp_bound.h"
#include "passes/sim/simulator.h"
#include "tests/passes/exact_solver.h"
#include "tests/passes/tiny_steps.h"

namespace bucketd::testing {
namespace {

struct Ratio {
  double sum = 0.0, most = 0.0;
  int count = 0, equal = 0;
  void Add(int64_t time, int64_t least) {
    const double over = 100.0 * (static_cast<double>(time) / static_cast<double>(least) - 1.0);
    sum += over;
    most = std::max(most, over);
    ++count;
    if (over < 0.001) ++equal;  // roundings
  }
  void Print() const {
    std::printf(" | %6.2f %6.2f %4.0f %%", sum / std::max(1, count), most,
                100.0 * equal / std::max(1, count));
  }
};

void PrintKind(size_t kind, uint32_t steps) {
  Ratio referee, sharp, planned;
  for (uint32_t seed = 0; seed < steps; ++seed) {
    TinyStep step(kind, seed);
    const Graph graph = step.Build();
    const Costs costs = step.CostsOf(graph);
    PlanOptions options;
    options.mode = "auto";
    options.numerics = Numerics::kFree;
    options.memory_limit_ppm = 10'000'000;
    const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
    if (!plan.ok()) continue;
    const std::optional<Optimum> best = FindOptimum(graph, costs, plan->prediction.total_ps);
    if (!best) continue;
    referee.Add(best->total_ps, LowerBoundPs(graph, costs));
    sharp.Add(best->total_ps, SharpBoundOf(graph, costs).total_ps);
    planned.Add(plan->prediction.total_ps, best->total_ps);
  }
  std::printf("%-16s %5d", kTinyKinds[kind], planned.count);
  referee.Print();
  sharp.Print();
  planned.Print();
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace bucketd::testing

int main(int argc, char** argv) {
  uint32_t steps = 500;
  if (argc > 2 || (argc == 2 && !absl::SimpleAtoi(argv[1], &steps))) {
    std::fprintf(stderr, "usage: bound_table [STEPS_OF_A_KIND]\n");
    return 2;
  }
  std::printf("percent above: mean, most, share that is equal\n%-16s %5s | %-20s | %-20s | %s\n",
              "kind", "steps", "best over referee's", "best over sharper", "auto over best");
  for (size_t kind = 0; kind < bucketd::testing::kTinyKinds.size(); ++kind) {
    bucketd::testing::PrintKind(kind, steps);
  }
  return 0;
}
