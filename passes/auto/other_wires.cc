#include "passes/auto/other_wires.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "passes/auto/budget.h"
#include "passes/sim/simulator.h"

namespace bucketd::search {
namespace {

// But no less than program order takes: under so little other orders are hard to find.
int64_t LimitFor(const Problem& problem, int64_t limit) {
  const int64_t peak = *std::max_element(problem.live_at.begin(), problem.live_at.end());
  return std::max(Share(limit, kOtherWiresMemory), std::min(limit, peak));
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

std::vector<Found> OrdersForWires(const Problem& problem, double times, int64_t limit,
                                  int32_t effort, const Decoded& start) {
  const Costs costs = problem.costs->WithWires(*problem.graph, times);
  const Problem other = UnderCosts(problem, costs);
  std::vector<Stop> stops = StopsOf(problem, LowerBoundPs(*problem.graph, costs), effort);
  for (Stop& stop : stops) stop.order_budget = 0;
  std::vector<Found> orders(stops.size());
  Search search(other, LimitFor(problem, limit), std::move(stops), [&](size_t stop) {
    if (!search.score().over) orders[stop] = search.best();
  });
  search.StartFrom(start);
  search.Run();
  return orders;
}

}  // namespace bucketd::search
