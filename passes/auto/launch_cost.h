// What one launch of the search takes.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "passes/auto/problem.h"
#include "passes/sim/stream_clock.h"

namespace bucketd::search {

enum class Form : uint8_t { kFree = 0, kGrouped, kPackedOnCompute, kPackedOnComm };

struct LaunchCost {
  internal::LaunchWork work;
  int64_t in_bytes = 0, out_bytes = 0;  // of all members together
};

// Members in payload order. One alone has no form; several have any but kFree.
LaunchCost CostOf(const Problem& problem, absl::Span<const CollectiveId> members, Form form);

// Whether the numerics that were asked for let these share a packed bucket.
bool MayPack(const Problem& problem, absl::Span<const CollectiveId> members);

}  // namespace bucketd::search
