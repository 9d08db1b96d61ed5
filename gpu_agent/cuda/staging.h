// How bytes of the host's come to a GPU and back without holding the calling thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bucketd::agent {

// Pinned host memory that copies from and to other host memory go through: CUDA itself would hold
// the calling thread for those. Thread-safe.
class Staging {
 public:
  explicit Staging(int device);
  // Memory of copies that are under way stays for good.
  ~Staging();
  // As cudaMemcpyAsync, `out`: to the host.
  absl::Status Copy(cudaStream_t stream, const void* from, void* to, size_t bytes, bool out);

 private:
  struct Block;
  static void CUDART_CB Land(void* block);
  absl::StatusOr<Block*> Take(size_t bytes);

  const int device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace bucketd::agent
