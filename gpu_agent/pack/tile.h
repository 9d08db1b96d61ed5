// Segments and their tiles: the data that host and kernels share. No Abseil here, nvcc reads it.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define BUCKETD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define BUCKETD_HOST_DEVICE inline
#endif

namespace bucketd::agent {

// `bytes`: the same bits. Casts are IEEE round to nearest even; a NaN becomes 0x7fff, as on
// NVIDIA's hardware. `zero` fills.
enum class Move : uint32_t { kBytes = 0, kF32ToBf16, kBf16ToF32, kZero };

// `count` elements (bytes for kBytes and kZero). Source and destination do not overlap and no two
// destinations of a list do. Casts want natural alignment, bytes want none.
struct Segment {
  const std::byte* from = nullptr;  // null for kZero
  std::byte* to = nullptr;
  int64_t count = 0;
  Move move = Move::kBytes;
};

// A piece of a segment that one thread block copies; 32 bytes, self-contained: one load, no search.
struct alignas(32) Tile {
  const std::byte* from;
  std::byte* to;
  uint32_t count;
  Move move;
  uint64_t unused;
};
static_assert(sizeof(Tile) == 32);

// Widest side of a tile.
inline constexpr int64_t kTileBytes = 32 << 10;

// Bytes of one element on either side.
BUCKETD_HOST_DEVICE constexpr uint32_t ReadSize(Move move) {
  return move == Move::kF32ToBf16 ? 4 : move == Move::kBf16ToF32 ? 2 : move == Move::kBytes ? 1 : 0;
}
BUCKETD_HOST_DEVICE constexpr uint32_t WriteSize(Move move) {
  return move == Move::kF32ToBf16 ? 2 : move == Move::kBf16ToF32 ? 4 : 1;
}

// How a segment falls into tiles. All tiles but the first begin on a line of the destination, so
// that the first alone has bytes before its vectors; no tile is empty.
// REQUIRES: `tile_bytes` is a power of two, at least 1024.
class Cutting {
 public:
  BUCKETD_HOST_DEVICE Cutting(const Segment& segment, int64_t tile_bytes)
      : segment_(segment),
        whole_(tile_bytes / (segment.move == Move::kF32ToBf16 ? 4 : WriteSize(segment.move))),
        skew_(static_cast<int64_t>(reinterpret_cast<uintptr_t>(segment.to) % kLine) /
              WriteSize(segment.move)) {}

  BUCKETD_HOST_DEVICE int64_t tiles() const {
    return segment_.count == 0 ? 0 : (segment_.count + skew_ + whole_ - 1) / whole_;
  }
  // REQUIRES: 0 <= k < tiles().
  BUCKETD_HOST_DEVICE Tile At(int64_t k) const {
    const int64_t begin = k == 0 ? 0 : k * whole_ - skew_;
    const int64_t end = (k + 1) * whole_ - skew_;
    const int64_t count = (end < segment_.count ? end : segment_.count) - begin;
    return Tile{segment_.from + begin * ReadSize(segment_.move),
                segment_.to + begin * WriteSize(segment_.move), static_cast<uint32_t>(count),
                segment_.move, 0};
  }

 private:
  static constexpr int64_t kLine = 128;  // bytes of a GPU's cache line

  Segment segment_;
  int64_t whole_;  // elements of a tile
  int64_t skew_;   // elements between the line that the destination begins in and its begin
};

}  // namespace bucketd::agent
