// Orders for wires that are faster than they were said to be.
//
// Where the wires decide how long a step takes, almost every order is as fast as the best, and a
// search for the least time tells nothing about the rest of an order: where compute could hide the
// ends of the step, or which gather could have come earlier. Should the wires turn out faster, that
// is what decides. Searches under faster wires look for it.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/auto/decoder.h"
#include "passes/auto/problem.h"
#include "passes/auto/search.h"
#include "passes/auto/settings.h"

namespace bucketd::search {

// What one search takes the wires for.
struct FastWires {
  std::vector<double> times;  // of a group: what a byte takes of its nominal time
  int32_t weight = 0;         // of the nominal time, beside 1 of the time under these wires
  int32_t budget = 1;         // times that of the search of the problem itself
};

// All wires faster. And in a large step of several groups those of the busiest alone: where they
// bind, that is when they may bind no more, and the other groups' order decides.
std::vector<FastWires> WiresToTry(const Problem& problem);

struct FastOrder {
  Decoded decoded;  // its total is that under faster wires; its memory does not depend on them
  Settings settings;
};

// What a search of the problem with those wires has found at each of the stops of an effort.
// Without an order where none was within the limit. `start` as in Search::StartFrom.
std::vector<FastOrder> OrdersForFastWires(const Problem& problem, const FastWires& wires,
                                          int64_t limit, int32_t effort, const Decoded& start);

}  // namespace bucketd::search
