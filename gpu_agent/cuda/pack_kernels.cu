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

}  // namespace

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

cudaError_t LaunchTiles(const Tile* tiles, uint32_t count, int blocks, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const uint32_t grid =
      count < static_cast<uint32_t>(blocks) ? count : static_cast<uint32_t>(blocks);
  void* arguments[] = {&tiles, &count};
  // This way of launching gives its own error, not the last one of whoever shares the thread.
  return cudaLaunchKernel(reinterpret_cast<const void*>(&CopyTiles), dim3(grid), dim3(kThreads),
                          arguments, 0, stream);
}

}  // namespace bucketd::agent
