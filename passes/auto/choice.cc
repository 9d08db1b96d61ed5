#include "passes/auto/choice.h"

#include <algorithm>

#include "passes/auto/budget.h"
#include "passes/auto/to_plan.h"
#include "passes/sim/simulator.h"

namespace bucketd::search {
namespace {

// Often one stop after the other wants the same order.
constexpr size_t kMostPlans = 4;

}  // namespace

Candidate CandidateOf(const PassContext& context, absl::string_view mode, Plan plan,
                      int64_t limit) {
  const Prediction figures = Simulate(context.graph, plan, context.costs).prediction;
  return {mode, std::move(plan), figures, ScoreOf({figures.total_ps, figures.peak_bytes}, limit)};
}

Choice::Choice(const PassContext& context, const Problem& problem, int64_t limit, int64_t bound_ps,
               const std::vector<Diagnostic>& told, Candidate floor,
               std::vector<std::vector<Found>> others)
    : context_(context),
      problem_(problem),
      limit_(limit),
      bound_ps_(bound_ps),
      told_(told),
      floor_(std::move(floor)),
      best_(floor_),
      evaluator_(problem, RobustBudgetOf(problem, kOtherWiresEffort) == 0
                              ? RobustnessEvaluator::kFewCases
                              : RobustnessEvaluator::kCases),
      replay_(problem, limit),
      others_(std::move(others)) {}

void Choice::AtStop(Search& search, int32_t effort) {
  if (effort <= kDefaultEffort) best_ = floor_;
  if (search.score().over) {
    Take(search.best().decoded);
    return;
  }
  int64_t fastest_ps = search.score().first;
  const std::vector<Found> others = OthersAt(Index(effort));
  for (const Found& other : others) {
    fastest_ps = std::min(fastest_ps, other.decoded.figures.total_ps);
  }
  int64_t ceiling_ps = CeilingOf(fastest_ps, bound_ps_, effort);
  if (!best_.score.over) ceiling_ps = std::min(ceiling_ps, best_.score.first);
  if (fastest_ps > ceiling_ps) return;
  const int64_t budget = RobustBudgetOf(problem_, effort) * problem_.size();
  const int64_t of_orders = problem_.is_small() ? Share(budget, kOrdersShare) : 0;
  Search around(problem_, limit_, {{budget - of_orders, 0, of_orders}});
  around.EvaluateBy(evaluator_, replay_, ceiling_ps);
  around.Adopt(search.best());
  for (const Found& other : others) around.Adopt(other);
  if (!robust_.decoded.order.empty()) around.Adopt(robust_);
  for (const Found& found : search.found()) {
    if (found.decoded.figures.total_ps <= ceiling_ps) around.Adopt(found);
  }
  around.LookAround();
  robust_ = around.best();
  Take(robust_.decoded);
  search.Adopt(robust_);  // often it is faster, too
}

// Of each search for other wires what it had at that stop, with what it takes on the real ones.
std::vector<Found> Choice::OthersAt(size_t stop) {
  std::vector<Found> found;
  for (const std::vector<Found>& orders : others_) {
    Found other = orders[std::min(stop, orders.size() - 1)];
    if (other.decoded.order.empty()) continue;
    other.decoded.figures.total_ps = kNever;
    other.decoded.figures = replay_.Late(other.decoded).figures;
    found.push_back(std::move(other));
  }
  return found;
}

// Unless it is slower than what is taken.
void Choice::Take(const Decoded& decoded) {
  const Candidate& made = PlanFor(decoded);
  const bool searched = best_.mode.empty() && !best_.score.over && !made.score.over;
  if (searched ? made.score.first > best_.score.first : !(made.score < best_.score)) return;
  best_ = made;
}

const Candidate& Choice::PlanFor(const Decoded& decoded) {
  for (const auto& [order, candidate] : plans_) {
    if (IsSameOrder(order, decoded)) return candidate;
  }
  Plan plan = PlanOf(context_, problem_, replay_.Late(decoded));
  plan.diagnostics = told_;
  if (plans_.size() == kMostPlans) plans_.pop_front();
  plans_.emplace_back(decoded, CandidateOf(context_, "", std::move(plan), limit_));
  return plans_.back().second;
}

}  // namespace bucketd::search
