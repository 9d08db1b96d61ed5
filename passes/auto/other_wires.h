// Orders for wires that are faster, or slower, than nominal.
//
// Where the wires decide how long a step takes, almost every order is as fast as the best, and a
// search for the least time tells nothing about the rest of an order: where compute could hide the
// ends of the step, or which gather could have come earlier. Should the wires turn out faster, that
// is what decides. Where they hide behind compute, the same holds of how early their launches
// stand, should they turn out slower. A search under such wires looks for it.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/auto/decoder.h"
#include "passes/auto/problem.h"
#include "passes/auto/search.h"

namespace bucketd::search {

// What a search of the problem has found at each of the stops of an effort where a byte takes
// `times` as long on every group's wires: totals are those under such wires, memory does not depend
// on them. Without an order where none was within the limit. `start` as in Search::StartFrom.
std::vector<Found> OrdersForWires(const Problem& problem, double times, int64_t limit,
                                  int32_t effort, const Decoded& start);

}  // namespace bucketd::search
