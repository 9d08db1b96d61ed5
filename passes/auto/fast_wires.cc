#include "passes/auto/fast_wires.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "passes/auto/auto_pass.h"
#include "passes/auto/robustness.h"
#include "passes/sim/simulator.h"

namespace bucketd::search {
namespace {

// Costs that are off by 30 % are seldom further off.
constexpr double kAllWires = 0.75;

// Where two aims pull, the few decodes that large graphs get are too few.
constexpr int32_t kWeight = 5, kBudget = 2;

// Of the limit, in thousandths: at nominal bandwidth buffers live longer.
constexpr int32_t kMemory = 988;

// But no less than program order takes: under so little other orders are hard to find.
int64_t LimitFor(const Problem& problem, int64_t limit) {
  const int64_t peak = *std::max_element(problem.live_at.begin(), problem.live_at.end());
  return std::max(Share(limit, kMemory), std::min(limit, peak));
}

// What each collective is good for stays, so that buckets mean the same in both.
Problem UnderCosts(const Problem& problem, const Costs& costs) {
  Problem other = problem;
  other.costs = &costs;
  for (size_t c = 0; c < other.transfers.size(); ++c) {
    Transfer& t = other.transfers[c];
    t.wire_ps = costs.node_ps(problem.node[Index(t.start)]) - t.alpha_ps;
  }
  return other;
}

}  // namespace

std::vector<FastWires> WiresToTry(const Problem& problem) {
  const size_t groups = problem.graph->groups().size();
  std::vector<FastWires> wires = {{std::vector<double>(groups, kAllWires)}};
  const auto other = [&](const Transfer& t) { return t.group != problem.busiest && t.wire_ps > 0; };
  if (!problem.is_small() &&
      std::any_of(problem.transfers.begin(), problem.transfers.end(), other)) {
    wires.push_back({std::vector<double>(groups, 1.0), kWeight, kBudget});
    wires.back().times[Index(problem.busiest)] = kBusiestWires;
  }
  return wires;
}

std::vector<FastOrder> OrdersForFastWires(const Problem& problem, const FastWires& wires,
                                          int64_t limit, int32_t effort, const Decoded& start) {
  const Costs costs = problem.costs->WithWires(*problem.graph, wires.times);
  const Problem fast = UnderCosts(problem, costs);
  int64_t bound_ps = LowerBoundPs(*problem.graph, costs);
  const int64_t said_ps = LowerBoundPs(*problem.graph, *problem.costs);
  bound_ps += (said_ps - bound_ps) / (1 + wires.weight) * wires.weight;
  std::vector<Stop> stops = StopsOf(problem, bound_ps, effort);
  for (Stop& stop : stops) {
    stop.budget *= wires.budget;
    stop.order_budget = 0;
  }
  std::vector<FastOrder> orders(stops.size());
  const Search* running = nullptr;
  Search search(fast, LimitFor(problem, limit), std::move(stops), [&](size_t stop) {
    if (!running->score().over) orders[stop] = {running->best(), running->best_settings()};
  });
  running = &search;
  RobustnessEvaluator said(problem);
  search.Weigh(said, wires.weight);
  search.StartFrom(start);
  search.Run();
  return orders;
}

}  // namespace bucketd::search
