#include "passes/auto/budget.h"

#include <algorithm>

namespace bucketd::search {
namespace {

// Of a decode, as budgets count it: groups count, although a decode looks at few of them at a time,
// because what is found for graphs with many of them hangs on the budget.
int64_t StepsOf(const Problem& problem) {
  return int64_t{problem.size()} * (4 + static_cast<int64_t>(problem.graph->groups().size())) / 4;
}

int64_t AtEffort(int64_t decodes, int32_t effort) {
  const int32_t more = effort - kDefaultEffort;
  return more >= 0 ? decodes << more : decodes >> -more;
}

// A plan so fast is near enough to the lower bound for an effort to look no further; more effort
// wants it nearer.
int64_t EnoughOf(int64_t bound_ps, int32_t effort) {
  const int64_t ppm = effort <= kEnoughUntil         ? kEnoughPpm
                      : effort <= kEnoughOfMoreUntil ? kEnoughPpmOfMore
                                                     : 0;
  return bound_ps + bound_ps / 1'000'000 * ppm;
}

}  // namespace

int64_t BudgetOf(const Problem& problem, int32_t effort) {
  const int64_t steps = StepsOf(problem);
  if (steps > kTooManySteps) return 0;
  const int64_t work =
      problem.is_small() ? problem.tuning.work : Share(problem.tuning.work, kLargeShare);
  // A dozen groups cost a decode nothing.
  const int64_t of_one = std::max<int64_t>({1, problem.size(), steps / 4});
  int64_t decodes = std::clamp(work / of_one, kLeastDecodes, kMostDecodes);
  decodes = std::min(decodes, std::max(kLeastOfMillions, kMostSteps / std::max<int64_t>(1, steps)));
  return std::max<int64_t>(1, AtEffort(decodes, effort));
}

int64_t RobustBudgetOf(const Problem& problem, int32_t effort) {
  if (!problem.tuning.Has(Part::kSturdier)) return 0;
  const int64_t size = std::max<int64_t>(1, problem.size());
  const int64_t decodes = AtEffort(std::min(kMostSturdier, kSturdierWork / size / size), effort);
  return decodes < kLeastSturdier ? 0 : decodes;
}

int64_t CeilingOf(int64_t best_ps, int64_t bound_ps, int32_t effort) {
  const int64_t above = std::clamp(Share(best_ps - bound_ps, kGiven), Share(best_ps, kLeastGiven),
                                   Share(best_ps, kMostGiven));
  return best_ps + (above >> std::max(0, effort - kDefaultEffort));
}

std::vector<Stop> StopsOf(const Problem& problem, int64_t bound_ps, int32_t effort) {
  std::vector<Stop> stops;
  for (int32_t e = 0; e <= effort; ++e) {
    const int64_t budget = BudgetOf(problem, e) * problem.size();
    const bool shared = problem.is_small() && e >= kOrdersFromEffort;
    stops.push_back({shared ? Share(budget, kDecodesShare) : budget, EnoughOf(bound_ps, e),
                     problem.is_small() ? Share(budget, kOrdersShare) : 0});
  }
  return stops;
}

}  // namespace bucketd::search
