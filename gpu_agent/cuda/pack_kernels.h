// The launch of the copies. No Abseil: nvcc compiles what is behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu_agent/pack/tile.h"

namespace bucketd::agent {

// Thread blocks of the kernel that fill the current device once.
cudaError_t ResidentBlocks(int& blocks);

// One launch that copies all tiles of a table in device memory. The grid stays resident and walks
// the table; fewer `blocks` leave room to a computation beside it. Can be captured into a graph.
// REQUIRES: blocks > 0.
cudaError_t LaunchTiles(const Tile* tiles, uint32_t count, int blocks, cudaStream_t stream);

}  // namespace bucketd::agent
