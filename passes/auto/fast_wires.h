// Orders for wires that are faster than they were said to be.
//
// Where the wires decide how long a step takes, almost every order is as fast as the best, and a
// search for the least time tells nothing about the rest of an order: where compute could hide the
// ends of the step, or which gather could have come earlier. Should the wires turn out faster, that
// is what decides. A search under faster wires looks for it.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/auto/decoder.h"
#include "passes/auto/problem.h"
#include "passes/auto/search.h"
#include "passes/auto/settings.h"

namespace bucketd::search {

struct FastOrder {
  Decoded decoded;  // its total is that under faster wires; its memory does not depend on them
  Settings settings;
};

// What a search of the problem with faster wires has found at each of the stops of an effort.
// Without an order where none was within the limit. `start` as in Search::StartFrom.
std::vector<FastOrder> OrdersForFastWires(const Problem& problem, int64_t limit, int32_t effort,
                                          const Decoded& start);

}  // namespace bucketd::search
