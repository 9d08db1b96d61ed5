#include "passes/auto/fast_wires.h"

#include <cstddef>
#include <utility>

#include "passes/auto/auto_pass.h"
#include "passes/sim/simulator.h"

namespace bucketd::search {
namespace {

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

std::vector<FastOrder> OrdersForFastWires(const Problem& problem, int64_t limit, int32_t effort,
                                          const std::vector<std::vector<Batch>>& hints) {
  const Costs costs = problem.costs->WithWires(*problem.graph, kFastWires);
  const Problem fast = UnderCosts(problem, costs);
  std::vector<Stop> stops = StopsOf(fast, LowerBoundPs(*fast.graph, costs), effort);
  std::vector<FastOrder> orders(stops.size());
  const Search* running = nullptr;
  Search search(fast, limit, std::move(stops), [&](size_t stop) {
    if (!running->score().over) orders[stop] = {running->best(), running->best_settings()};
  });
  running = &search;
  for (const std::vector<Batch>& hint : hints) search.AddStart(hint);
  search.Run();
  return orders;
}

}  // namespace bucketd::search
