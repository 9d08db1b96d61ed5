// How much of a gap is the lower bound's slack: mode auto and both bounds against the best plan
// there is, on steps that are small enough to be solved exactly.
//
// Of mode auto: the plan, the fastest order that its search found, and what it gives for a sturdier
// one. Steps whose kernels, wires and memory have any proportion; a first seed that nobody has used
// tells what the search does where it was not tuned.
//
//   bound_table [STEPS_OF_A_KIND [FIRST_SEED]]     default 500 from 0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "absl/strings/numbers.h"

#include "passes/planner.h"
#include "passes/sim/auto_report.h"
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

void PrintKind(size_t kind, uint32_t first, uint32_t steps) {
  Ratio referee, sharp, planned, found, sturdier;
  for (uint32_t seed = first; seed < first + steps; ++seed) {
    TinyStep step(kind, seed);
    const Graph graph = step.Build();
    const Costs costs = step.CostsOf(graph);
    PlanOptions options;
    options.mode = "auto";
    options.numerics = Numerics::kFree;
    options.memory_limit_ppm = step.memory_limit_ppm();
    const absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
    const int64_t limit = Simulate(graph, ProgramOrder(graph), costs).prediction.peak_bytes *
                          options.memory_limit_ppm / 1'000'000;
    if (!plan.ok() || plan->prediction.peak_bytes > limit) continue;
    const int64_t total = plan->prediction.total_ps;
    const std::optional<Optimum> best = FindOptimum(graph, costs, total, limit);
    if (!best) continue;
    const std::optional<AutoReport> report = ReportOf(*plan);
    // In any memory: below the best plan's it was over the limit.
    const int64_t seen = report ? std::min(total, report->fastest_ps) : total;
    const int64_t fastest = seen < best->total_ps ? total : seen;
    referee.Add(best->total_ps, LowerBoundPs(graph, costs));
    sharp.Add(best->total_ps, SharpBoundOf(graph, costs).total_ps);
    planned.Add(total, best->total_ps);
    found.Add(fastest, best->total_ps);
    sturdier.Add(total, fastest);
  }
  std::printf("%-16s %5d", kTinyKinds[kind], planned.count);
  for (const Ratio* ratio : {&referee, &sharp, &planned, &found, &sturdier}) ratio->Print();
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace bucketd::testing

int main(int argc, char** argv) {
  uint32_t steps = 500, first = 0;
  if (argc > 3 || (argc > 1 && !absl::SimpleAtoi(argv[1], &steps)) ||
      (argc > 2 && !absl::SimpleAtoi(argv[2], &first))) {
    std::fprintf(stderr, "usage: bound_table [STEPS_OF_A_KIND [FIRST_SEED]]\n");
    return 2;
  }
  std::printf(
      "percent above: mean, most, share that is equal\n%-16s %5s | %-20s | %-20s | %-20s | %-20s | "
      "%s\n",
      "kind", "steps", "best over referee's", "best over sharper", "auto over best",
      "fastest found", "sturdier over it");
  for (size_t kind = 0; kind < bucketd::testing::kTinyKinds.size(); ++kind) {
    bucketd::testing::PrintKind(kind, first, steps);
  }
  return 0;
}
