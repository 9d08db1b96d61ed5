#include <cstring>

#include "gpu_agent/pack/segments.h"
#include "gpu_agent/pack/tile_copy.h"

namespace bucketd::agent {
namespace {

// Elements in blocks that stay in the first cache, through arrays of known length and alignment:
// the inner loop has nothing left to find out and becomes vectors.
template <class Op>
[[gnu::always_inline]] inline void CastBlocks(const Tile& tile) {
  using From = typename Op::From;
  using To = typename Op::To;
  constexpr size_t kBlock = 512;
  From from[kBlock];
  To to[kBlock];
  size_t done = 0;
  for (; done + kBlock <= tile.count; done += kBlock) {
    std::memcpy(from, tile.from + done * sizeof(From), sizeof(from));
    for (size_t k = 0; k < kBlock; ++k) to[k] = Op::Element(from[k]);
    std::memcpy(tile.to + done * sizeof(To), to, sizeof(to));
  }
  const size_t rest = tile.count - done;
  std::memcpy(from, tile.from + done * sizeof(From), rest * sizeof(From));
  for (size_t k = 0; k < rest; ++k) to[k] = Op::Element(from[k]);
  std::memcpy(tile.to + done * sizeof(To), to, rest * sizeof(To));
}

#ifdef __x86_64__
// The same integer arithmetic, so the same bits, in twice the width.
template <class Op>
[[gnu::target("avx2")]] void CastWide(const Tile& tile) {
  CastBlocks<Op>(tile);
}
#endif

template <class Op>
void Cast(const Tile& tile) {
#ifdef __x86_64__
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  if (wide) return CastWide<Op>(tile);
#endif
  CastBlocks<Op>(tile);
}

}  // namespace

void CopyOnHost(absl::Span<const Tile> tiles) {
  for (const Tile& tile : tiles) {
    switch (tile.move) {
      case Move::kBytes:
        std::memcpy(tile.to, tile.from, tile.count);
        break;
      case Move::kF32ToBf16:
        Cast<F32ToBf16Move>(tile);
        break;
      case Move::kBf16ToF32:
        Cast<Bf16ToF32Move>(tile);
        break;
      case Move::kZero:
        std::memset(tile.to, 0, tile.count);
        break;
    }
  }
}

}  // namespace bucketd::agent
