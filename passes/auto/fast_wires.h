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

// What a byte takes of its time as said: costs that are off by 30 % are seldom further off.
inline constexpr double kFastWires = 0.75;

struct FastOrder {
  Decoded decoded;  // its total is that under faster wires; its memory does not depend on them
  Settings settings;
};

// What a search of the problem with faster wires has found at each of the stops of an effort.
// Without an order where none was within the limit. `hints` as in Search::AddStart. As dear as the
// search of the problem itself.
std::vector<FastOrder> OrdersForFastWires(const Problem& problem, int64_t limit, int32_t effort,
                                          const std::vector<std::vector<Batch>>& hints);

}  // namespace bucketd::search
