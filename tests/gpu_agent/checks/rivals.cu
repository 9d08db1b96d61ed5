#include <cub/device/device_memcpy.cuh>

#include "tests/gpu_agent/checks/rivals.h"
#include "gpu_agent/pack/tile_copy.h"

namespace bucketd::agent {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    CopySegments(const Segment* __restrict__ segments, const uint32_t* __restrict__ first,
                 uint32_t count, uint32_t tiles) {
  for (uint32_t k = blockIdx.x; k < tiles; k += gridDim.x) {
    uint32_t low = 0, high = count;  // the last segment with first <= k
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      if (first[middle] <= k) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const Segment segment = segments[low];
    CopyTile(TileMemory{}, Cutting(segment, kTileBytes).At(k - first[low]), threadIdx.x, kThreads);
  }
}

__global__ void CastElements(const std::byte* from, std::byte* to, int64_t count, Move move) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t k = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; k < count; k += stride) {
    if (move == Move::kF32ToBf16) {
      reinterpret_cast<uint16_t*>(to)[k] = Bf16Bits(reinterpret_cast<const uint32_t*>(from)[k]);
    } else {
      reinterpret_cast<uint32_t*>(to)[k] =
          static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from)[k]) << 16;
    }
  }
}

__global__ void FillWords(uint32_t* to, size_t words, uint32_t seed) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t k = size_t{blockIdx.x} * blockDim.x + threadIdx.x; k < words; k += stride) {
    uint32_t bits = static_cast<uint32_t>(k) * 2654435761u + seed;
    bits = (bits ^ bits >> 15) * 2246822519u;
    to[k] = bits ^ bits >> 13;
  }
}

}  // namespace

cudaError_t LaunchSegments(const Segment* segments, const uint32_t* first, uint32_t count,
                           uint32_t tiles, int blocks, cudaStream_t stream) {
  const uint32_t all = static_cast<uint32_t>(blocks);
  const uint32_t grid = tiles < all ? tiles : all;
  CopySegments<<<grid, kThreads, 0, stream>>>(segments, first, count, tiles);
  return cudaGetLastError();
}

cudaError_t LaunchCast(const Segment& segment, cudaStream_t stream) {
  const int64_t blocks = (segment.count + 1023) / 1024;
  CastElements<<<static_cast<unsigned>(blocks < 1056 ? blocks : 1056), kThreads, 0, stream>>>(
      segment.from, segment.to, segment.count, segment.move);
  return cudaGetLastError();
}

cudaError_t LaunchCub(void* scratch, size_t& scratch_bytes, const void* const* from,
                      void* const* to, const size_t* bytes, uint32_t count, cudaStream_t stream) {
  return cub::DeviceMemcpy::Batched(scratch, scratch_bytes, from, to, bytes,
                                    static_cast<int64_t>(count), stream);
}

cudaError_t LaunchFill(uint32_t* to, size_t words, uint32_t seed, cudaStream_t stream) {
  FillWords<<<1056, kThreads, 0, stream>>>(to, words, seed);
  return cudaGetLastError();
}

}  // namespace bucketd::agent
