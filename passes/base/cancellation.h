// Whether anybody still wants what this thread computes. Long computations ask now and then and end
// early; what they leave behind then is thrown away, so that no result depends on it.
#pragma once

#include <atomic>

namespace bucketd {

// While it lives, IsCancelled() of this thread says what `cancelled` says, which outlives it and
// never turns false again. Do not nest.
class CancellationScope {
 public:
  explicit CancellationScope(const std::atomic<bool>& cancelled);
  ~CancellationScope();
  CancellationScope(const CancellationScope&) = delete;
  CancellationScope& operator=(const CancellationScope&) = delete;
};

// Two loads. False where there is no scope.
bool IsCancelled();

}  // namespace bucketd
