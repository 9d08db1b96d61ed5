// Waits where they are needed.
#pragma once

#include <cstdint>

#include "passes/auto/problem.h"
#include "passes/pass/pass.h"
#include "passes/plan/plan.h"

namespace bucketd::search {

// The decoder waits for a collective as soon as that has ended by the costs that it knows. Where
// the wire is slower in truth, such a wait stops compute for nothing. This moves waits, and what
// only reductions' results hang on, to their first use; reductions, whose inputs live until their
// wait, less far where memory is short. Only if the step takes as long as before, or is faster
// where that is welcome, and takes no more memory than before or than program order within `limit`
// bytes. At most four simulations. Returns the plan's figures.
Prediction SettleWaits(const PassContext& context, const Problem& problem, int64_t limit,
                       const Prediction& before, Plan& plan);

}  // namespace bucketd::search
