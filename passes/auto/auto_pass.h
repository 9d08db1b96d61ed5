// The pass of mode auto: the best plan that a search finds, never worse than any other mode's.
#pragma once

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"

#include "passes/auto/tuning.h"
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
// since the table that lists them also lists this pass. FAILED_PRECONDITION if a limit in bytes is
// below every plan that was found; a share is exceeded instead, and the plan says so. A mode that
// answers FAILED_PRECONDITION cannot plan this graph and is left out; any other error of a mode is
// this pass's own. Deterministic: effort counts work.
std::unique_ptr<Pass> MakeSearchPass(std::vector<OtherMode> others,
                                     const search::Tuning& tuning = {});

}  // namespace bucketd
