// Copies of a bucket: copy-in and copy-out are lists of segments, cast included, run in one launch.
// Pure data; pack_cpu runs it on the host, the CUDA kernels on a GPU, bit for bit the same.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "gpu_agent/pack/tile.h"
#include "passes/base/types.h"

namespace bucketd::agent {

// The segment's move between two dtypes. INVALID_ARGUMENT where there is none.
absl::StatusOr<Move> MoveBetween(DType from, DType to);
int64_t BytesRead(const Segment& segment);
int64_t BytesWritten(const Segment& segment);

// Segments in their order, each cut into tiles (tile.h says where); counts of zero vanish.
// O(tiles). INVALID_ARGUMENT names a segment with a negative count, a null pointer or a cast that
// is not aligned; also where there would be more than kMaxTiles, or `tile_bytes` is no power of two
// between 1 KiB and 1 GiB.
inline constexpr int64_t kMaxTiles = int64_t{1} << 24;
absl::StatusOr<std::vector<Tile>> Cut(absl::Span<const Segment> segments,
                                      int64_t tile_bytes = kTileBytes);

// Runs the tiles on the calling thread. REQUIRES: tiles of Cut whose memory is the host's.
void CopyOnHost(absl::Span<const Tile> tiles);

}  // namespace bucketd::agent
