// What the search launches as one, and what that takes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "passes/auto/problem.h"
#include "passes/sim/stream_clock.h"

namespace bucketd::search {

enum class Form : uint8_t { kFree = 0, kGrouped, kPackedOnCompute, kPackedOnComm };

// A collective alone has one member and the form kFree, several have any other.
struct Batch {
  std::vector<CollectiveId> members;  // in payload order
  Form form = Form::kFree;
  bool stalled = false;  // the step stood still in its wait
  friend bool operator==(const Batch&, const Batch&) = default;
};

struct LaunchCost {
  internal::LaunchWork work;
  int64_t in_bytes = 0, out_bytes = 0;  // of all members together
};

LaunchCost CostOf(const Problem& problem, const Batch& batch);

void SortByPayload(const Problem& problem, std::vector<CollectiveId>& members);

// Whether the numerics that were asked for let these share a packed bucket.
bool MayPack(const Problem& problem, absl::Span<const CollectiveId> members);

}  // namespace bucketd::search
