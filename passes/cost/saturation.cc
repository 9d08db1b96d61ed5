#include "passes/cost/saturation.h"

#include <algorithm>
#include <limits>

#include "passes/base/int128.h"

namespace bucketd {
int64_t ClampAutoCap(int64_t bytes) {
  return std::clamp(bytes, kMinAutoCapBytes, kMaxAutoCapBytes);
}

int64_t SaturationBytes(const Costs& costs, CollectiveId c) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kProbe = int64_t{1} << 30, kNine = 9;  // 0.9 / (1 - 0.9)
  const int64_t alpha = costs.AlphaPs(c);
  const int64_t wire = costs.CollectivePs(c, kProbe, 1) - alpha;
  if (wire <= 0) return kMax;
  const Int128 bytes = Int128{kNine} * alpha * kProbe / wire;
  return bytes > kMax ? kMax : static_cast<int64_t>(bytes);
}

int64_t AutoCapBytes(const Costs& costs, CollectiveId c) {
  return ClampAutoCap(SaturationBytes(costs, c));
}

}  // namespace bucketd
