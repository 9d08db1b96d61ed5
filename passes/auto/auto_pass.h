// The pass of mode auto: the best plan that a search finds, never worse than any other mode's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"

#include "passes/auto/problem.h"
#include "passes/auto/search.h"
#include "passes/pass/pass.h"
#include "passes/pass/pipeline.h"

namespace bucketd {

// A mode to start from: the passes that it runs on a plan behind tag-collectives.
struct OtherMode {
  using Change = void (*)(PlanOptions&);
  absl::string_view name;  // outlives the pass
  Pipeline pipeline;
  Change change = nullptr;  // of the options that it runs under
};

// Looks at what the other modes make under the same options, and searches further with
// options.effort; keeps the best plan by (within the memory limit, time, memory). Modes are given,
// since the table that lists them also lists this pass. FAILED_PRECONDITION if tag-collectives has
// not run, or if a limit in bytes is below every plan that was found; a share is exceeded instead,
// and the plan says so. A mode that answers FAILED_PRECONDITION cannot plan this graph and is left
// out; any other error of a mode is this pass's own. Deterministic: effort counts work.
std::unique_ptr<Pass> MakeSearchPass(std::vector<OtherMode> others,
                                     const search::Tuning& tuning = {});

namespace search {

// Decodes that an effort allows on a problem of so many leaders and groups; more effort, more
// decodes. 0: the problem is too large for any.
int64_t BudgetOf(const Problem& problem, int32_t effort);

// Decodes to look around the fastest plan for one that is faster under perturbed costs. 0: none.
int64_t RobustBudgetOf(const Problem& problem, int32_t effort);

// What such a plan may take where the fastest takes `best_ps`: half as much again of what is above
// the bound, but at least 0.4 % and at most 2 % more of the whole; from effort 6 on, each step
// halves that.
int64_t CeilingOf(int64_t best_ps, int64_t bound_ps, int32_t effort);

// A plan so fast is near enough to the lower bound for an effort to look no further; more effort
// wants it nearer.
int64_t EnoughOf(int64_t bound_ps, int32_t effort);

// Where searches of efforts 0 to `effort` end.
std::vector<Stop> StopsOf(const Problem& problem, int64_t bound_ps, int32_t effort);

}  // namespace search
}  // namespace bucketd
