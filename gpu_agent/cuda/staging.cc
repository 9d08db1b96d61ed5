#include "gpu_agent/cuda/staging.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "gpu_agent/cuda/cuda_device.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {

struct Staging::Block {
  explicit Block(int gpu) : device(gpu) {}
  const int device;
  size_t bytes = 0;  // of memory
  void* memory = nullptr;
  void* to = nullptr;  // where what has landed goes; null: nowhere
  size_t landing = 0;
  std::atomic<bool> busy = false;

  ~Block() {
    const CurrentDevice current(device);
    cudaFreeHost(memory);
  }
};

Staging::Staging(int device) : device_(device) {}
Staging::~Staging() {
  for (auto& block : blocks_) {
    if (block->busy.load(std::memory_order_acquire)) [[maybe_unused]]
      Block* left = block.release();
  }
}

// On a thread of the driver's, which may not call CUDA.
void CUDART_CB Staging::Land(void* block) {
  auto* landed = static_cast<Block*>(block);
  if (landed->to != nullptr) std::memcpy(landed->to, landed->memory, landed->landing);
  landed->busy.store(false, std::memory_order_release);
}

absl::StatusOr<Staging::Block*> Staging::Take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const auto& block : blocks_) {
    if (block->bytes >= bytes && !block->busy.exchange(true, std::memory_order_acquire)) {
      return block.get();
    }
  }
  auto block = std::make_unique<Block>(device_);
  block->bytes = std::max(std::bit_ceil(bytes), size_t{64} << 10);
  block->busy = true;
  RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&block->memory, block->bytes, cudaHostAllocPortable),
                             absl::StrCat(block->bytes, " bytes of pinned memory")));
  blocks_.push_back(std::move(block));
  return blocks_.back().get();
}

absl::Status Staging::Copy(cudaStream_t stream, const void* from, void* to, size_t bytes,
                           bool out) {
  ASSIGN_OR_RETURN(Block * block, Take(bytes));
  block->to = out ? to : nullptr;
  block->landing = bytes;
  if (!out) std::memcpy(block->memory, from, bytes);
  const cudaError_t copied =
      out ? cudaMemcpyAsync(block->memory, from, bytes, cudaMemcpyDeviceToHost, stream)
          : cudaMemcpyAsync(to, block->memory, bytes, cudaMemcpyHostToDevice, stream);
  if (copied != cudaSuccess) {
    block->busy.store(false, std::memory_order_release);
    return CudaStatus(copied, absl::StrCat("a copy of ", bytes, " bytes"));
  }
  // Where this is refused nobody says when the copy has ended: the block is never another's.
  return CudaStatus(cudaLaunchHostFunc(stream, Land, block), "the end of a copy");
}

}  // namespace bucketd::agent
