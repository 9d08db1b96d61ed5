// Copies of a bucket: copy-in and copy-out are lists of segments, cast included, run in one launch.
// Pure data; pack_cpu runs it on the host, the CUDA kernels on a GPU, bit for bit the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "passes/base/types.h"

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

// The segment's move between two dtypes. INVALID_ARGUMENT where there is none.
absl::StatusOr<Move> MoveBetween(DType from, DType to);
int64_t BytesRead(const Segment& segment);
int64_t BytesWritten(const Segment& segment);

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

// Segments in their order, each cut into tiles; counts of zero vanish. O(tiles). INVALID_ARGUMENT
// names a segment with a negative count, a null pointer or a cast that is not aligned.
absl::StatusOr<std::vector<Tile>> Cut(absl::Span<const Segment> segments,
                                      int64_t tile_bytes = kTileBytes);

// Runs the tiles on the calling thread. REQUIRES: tiles of Cut whose memory is the host's.
void CopyOnHost(absl::Span<const Tile> tiles);

}  // namespace bucketd::agent
