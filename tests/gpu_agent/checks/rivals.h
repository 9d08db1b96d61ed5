// Other ways to make the same copies, to measure the tile kernel against.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu_agent/pack/tile.h"

namespace bucketd::agent {

// Tiles found by a search in the segments' prefix sums: 36 bytes to upload a segment, in place of
// 32 a tile. Arrays in device memory; `first` are tiles before each segment.
cudaError_t LaunchSegments(const Segment* segments, const uint32_t* first, uint32_t count,
                           uint32_t tiles, int blocks, cudaStream_t stream);

// The tile kernel by blocks of twice as many threads, as many blocks as there is room for.
cudaError_t LaunchWide(const Tile* tiles, uint32_t count, cudaStream_t stream);

// Tiles of bytes through shared memory: one thread of a block starts bulk copies in and out, a
// dozen tiles ahead. Wants compute capability 9.0. REQUIRES: 16 divides every address and count,
// and no tile has more than kBulkBytes.
inline constexpr int kBulkBytes = 16 << 10;
cudaError_t LaunchBulk(const Tile* tiles, uint32_t count, int blocks, cudaStream_t stream);

// One kernel for one cast, as eager code does it: an element a thread.
cudaError_t LaunchCast(const Segment& segment, cudaStream_t stream);

// cub::DeviceMemcpy::Batched. `scratch` null: says in `scratch_bytes` what it wants.
cudaError_t LaunchCub(void* scratch, size_t& scratch_bytes, const void* const* from,
                      void* const* to, const size_t* bytes, uint32_t count, cudaStream_t stream);

// Bits of all kinds, the same for the same seed.
cudaError_t LaunchFill(uint32_t* to, size_t words, uint32_t seed, cudaStream_t stream);

}  // namespace bucketd::agent
