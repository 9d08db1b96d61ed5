// Where a collective's payload stands in eager training's buckets.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/pass/pass.h"

namespace bucketd {

// One a collective, distinct: a bucket's members stand in ascending order of these. By the caller's
// parameter order; what it lacks follows in order of the graph's first collective for it. REQUIRES:
// tag-collectives has run.
std::vector<int32_t> PayloadRanks(const PassContext& context);

}  // namespace bucketd
