// How much each effort may look at, and what counts as near enough.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/auto/problem.h"
#include "passes/auto/search.h"

namespace bucketd::search {

// Decodes that an effort allows on a problem of so many leaders and groups; more effort, more
// decodes. 0: the problem is too large for any.
int64_t BudgetOf(const Problem& problem, int32_t effort);

// Decodes to look around the fastest plan for one that is faster under perturbed costs. 0: none.
int64_t RobustBudgetOf(const Problem& problem, int32_t effort);

// What such a plan may take where the fastest takes `best_ps`: half as much again of what is above
// the bound, but at least 0.8 % and at most 2 % more of the whole; each step of effort behind
// the default halves that.
int64_t CeilingOf(int64_t best_ps, int64_t bound_ps, int32_t effort);

// Where searches of efforts 0 to `effort` end.
std::vector<Stop> StopsOf(const Problem& problem, int64_t bound_ps, int32_t effort);

}  // namespace bucketd::search
