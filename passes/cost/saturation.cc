#include "passes/cost/saturation.h"

#include <algorithm>
#include <limits>

namespace bucketd {
namespace {

constexpr int64_t kNine = 9;  // 0.9 / (1 - 0.9)

// As PyTorch has them; floor in MB of 2^20 bytes.
struct Link {
  double gb_per_s, hop_us, base_us;
  int64_t floor_mb;
};
constexpr int32_t kRanksInside = 8;
constexpr Link kInside = {22, 45, 10, 0}, kAcross = {11, 14, 30, 75};

int64_t Clamp(int64_t bytes) {
  return std::min(std::max(bytes, kMinAutoCapBytes), kMaxAutoCapBytes);
}

}  // namespace

int64_t SaturationBytes(const Costs& costs, CollectiveId c) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kProbe = int64_t{1} << 30;
  const int64_t alpha = costs.AlphaPs(c);
  const int64_t wire = costs.CollectivePs(c, kProbe, 1) - alpha;
  if (wire <= 0) return kMax;
  __extension__ typedef __int128 Int128;
  const Int128 bytes = Int128{kNine} * alpha * kProbe / wire;
  return bytes > kMax ? kMax : static_cast<int64_t>(bytes);
}

int64_t AutoCapBytes(const Costs& costs, CollectiveId c) {
  return Clamp(SaturationBytes(costs, c));
}

int64_t TorchSaturationBytes(int32_t ranks) {
  const Link& link = ranks > kRanksInside ? kAcross : kInside;
  const double us = link.base_us + (ranks - 1) * link.hop_us;
  const auto bytes = static_cast<int64_t>(kNine * us * link.gb_per_s * 1e3);
  return std::max(bytes, link.floor_mb << 20);
}

int64_t TorchAutoCapBytes(int32_t ranks) { return Clamp(TorchSaturationBytes(ranks)); }

}  // namespace bucketd
