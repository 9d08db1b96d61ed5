// The launch of the copies. No Abseil: nvcc compiles what is behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu_agent/pack/tile.h"

namespace bucketd::agent {

// One launch that copies all tiles of a table in device memory. The grid stays resident and walks
// the table; `max_blocks` bounds it, so that copies beside a computation leave it room (0: the
// whole GPU). Can be captured into a graph.
cudaError_t LaunchTiles(const Tile* tiles, uint32_t count, int max_blocks, cudaStream_t stream);

}  // namespace bucketd::agent
