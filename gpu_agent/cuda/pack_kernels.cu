#include "gpu_agent/cuda/pack_kernels.h"
#include "gpu_agent/pack/tile_copy.h"

namespace bucketd::agent {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    CopyTiles(const Tile* __restrict__ tiles, uint32_t count) {
  for (uint32_t k = blockIdx.x; k < count; k += gridDim.x) {
    CopyTile(TileMemory{}, tiles[k], threadIdx.x, kThreads);
  }
}

// Blocks that fill the current device once.
cudaError_t ResidentBlocks(int& blocks) {
  int device = 0, processors = 0, each = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, CopyTiles, kThreads, 0);
  blocks = processors * each;
  return error;
}

}  // namespace

cudaError_t LaunchTiles(const Tile* tiles, uint32_t count, int max_blocks, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  int blocks = max_blocks;
  if (blocks <= 0) {
    const cudaError_t error = ResidentBlocks(blocks);
    if (error != cudaSuccess) return error;
  }
  if (count < static_cast<uint32_t>(blocks)) blocks = static_cast<int>(count);
  CopyTiles<<<blocks, kThreads, 0, stream>>>(tiles, count);
  return cudaGetLastError();
}

}  // namespace bucketd::agent
