// From how many bytes on a link is busy rather than waiting: what the automatic cap of a bucket is.
// A message of (e / (1 - e)) * latency * bandwidth bytes uses e of the link; e is 90 % throughout.
#pragma once

#include <cstdint>

#include "passes/cost/costs.h"

namespace bucketd {

inline constexpr int64_t kMinAutoCapBytes = int64_t{10} << 20;
inline constexpr int64_t kMaxAutoCapBytes = int64_t{500} << 20;

int64_t ClampAutoCap(int64_t bytes);  // between the two
// Of the link that c's group has, with its latency and its bandwidth as the cost profile knows
// them. Not clamped; the largest int64 where bytes take no time. O(1).
int64_t SaturationBytes(const Costs& costs, CollectiveId c);
// The above between the two limits.
int64_t AutoCapBytes(const Costs& costs, CollectiveId c);

}  // namespace bucketd
