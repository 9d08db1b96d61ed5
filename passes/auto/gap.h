// Where a plan's time above the lower bound goes.
#pragma once

#include <cstdint>
#include <string>

#include "passes/auto/problem.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd::search {

// What the compute stream does besides computing at full speed, in picoseconds. Together with the
// compute they make the step; what of it no plan could avoid is in the bound as well, so they may
// be more than the gap.
struct Gap {
  int64_t head = 0;      // waits before the first kernel
  int64_t tail = 0;      // after the last kernel
  int64_t wire = 0;      // waits for parameters and for reductions in between
  int64_t path = 0;      // waits for collectives on the path of the step
  int64_t copies = 0;    // copy-in and copy-out, and what copies on the wire charge
  int64_t slowdown = 0;  // of kernels while a collective runs
  int64_t host = 0;      // the host had not launched yet
};

// REQUIRES: a legal plan of the problem's graph. O(nodes + edges).
Gap GapOf(const Problem& problem, const Plan& plan);

// In words, for people, with what the memory limit costs: time above the fastest plan seen.
std::string GapText(const Gap& gap, int64_t total_ps, int64_t bound_ps, int64_t memory_ps);

}  // namespace bucketd::search
