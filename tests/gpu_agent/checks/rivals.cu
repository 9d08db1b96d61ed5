#include <cub/device/device_memcpy.cuh>

#include "gpu_agent/pack/tile_copy.h"
#include "tests/gpu_agent/checks/rivals.h"

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

constexpr int kWide = 512;

__global__ void __launch_bounds__(kWide) CopyWide(const Tile* __restrict__ tiles, uint32_t count) {
  for (uint32_t k = blockIdx.x; k < count; k += gridDim.x) {
    CopyTile(TileMemory{}, tiles[k], threadIdx.x, kWide);
  }
}

constexpr uint32_t kStages = 12;

#if __CUDA_ARCH__ >= 900
// A ring of tiles in shared memory: each stage has a barrier that its tile's arrival flips. The
// instructions are those of PTX ISA 8.0, sections cp.async.bulk and mbarrier.
class BulkRing {
 public:
  __device__ BulkRing(std::byte* memory, uint64_t* barriers, const Tile* tiles)
      : memory_(Address(memory)), barriers_(Address(barriers)), tiles_(tiles) {
    for (uint32_t s = 0; s < kStages; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + 8 * s));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ void Load(uint32_t j) const {
    const Tile& tile = Of(j);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Barrier(j)),
                 "r"(tile.count)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(Stage(j)),
        "l"(tile.from), "r"(tile.count), "r"(Barrier(j))
        : "memory");
  }
  __device__ void Store(uint32_t j) const {
    const Tile& tile = Of(j);
    for (uint32_t there = 0; there == 0;) {
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
          " selp.u32 %0, 1, 0, p;}"
          : "=r"(there)
          : "r"(Barrier(j)), "r"(j / kStages & 1)
          : "memory");
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(tile.to),
                 "r"(Stage(j)), "r"(tile.count)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  // All stores but the last have read their stages.
  __device__ void AwaitReads() const {
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
  }
  __device__ void AwaitAll() const { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

 private:
  __device__ static uint32_t Address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ const Tile& Of(uint32_t j) const { return tiles_[blockIdx.x + j * gridDim.x]; }
  __device__ uint32_t Stage(uint32_t j) const { return memory_ + j % kStages * kBulkBytes; }
  __device__ uint32_t Barrier(uint32_t j) const { return barriers_ + 8 * (j % kStages); }

  const uint32_t memory_, barriers_;
  const Tile* const tiles_;
};
#endif

__global__ void CopyBulk(const Tile* __restrict__ tiles, uint32_t count) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ uint64_t barriers[kStages];
  if (threadIdx.x != 0 || blockIdx.x >= count) return;
  const BulkRing ring(memory, barriers, tiles);
  const uint32_t mine = (count - blockIdx.x + gridDim.x - 1) / gridDim.x;
  for (uint32_t j = 0; j < mine && j + 1 < kStages; ++j) ring.Load(j);
  for (uint32_t j = 0; j < mine; ++j) {
    ring.Store(j);
    if (j + kStages - 1 >= mine) continue;
    ring.AwaitReads();
    ring.Load(j + kStages - 1);
  }
  ring.AwaitAll();
#endif
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

cudaError_t LaunchWide(const Tile* tiles, uint32_t count, cudaStream_t stream) {
  int processors = 0, each = 0;
  cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, CopyWide, kWide, 0);
  if (error != cudaSuccess) return error;
  const uint32_t all = static_cast<uint32_t>(processors * each);
  const uint32_t grid = count < all ? count : all;
  CopyWide<<<grid, kWide, 0, stream>>>(tiles, count);
  return cudaGetLastError();
}

cudaError_t LaunchBulk(const Tile* tiles, uint32_t count, int blocks, cudaStream_t stream) {
  constexpr int kMemory = kStages * kBulkBytes;
  const cudaError_t error =
      cudaFuncSetAttribute(CopyBulk, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory);
  if (error != cudaSuccess) return error;
  CopyBulk<<<static_cast<unsigned>(blocks), 32, kMemory, stream>>>(tiles, count);
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
