// Tensors of a test's buckets in device memory.
#pragma once

#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "gpu_agent/device/stream.h"
#include "passes/base/types.h"
#include "tests/gpu_agent/executor_fixture.h"

namespace bucketd::agent {

// A tensor list in device memory, and its bytes on the host.
class OnGpu {
 public:
  OnGpu(Device& device, std::vector<Values>& host) : device_(device), host_(host) {
    for (Values& values : host) {
      const Tensor tensor = values.tensor();
      const int64_t bytes = tensor.elements * ItemSize(tensor.dtype);
      memory_.push_back(*device.Allocate(bytes));
      tensors_.push_back({memory_.back()->data(), tensor.elements, tensor.dtype});
    }
  }
  absl::Span<const Tensor> tensors() const { return tensors_; }
  void Upload(Stream& stream) { Copy(stream, true); }
  void Download(Stream& stream) { Copy(stream, false); }
  void Free() { memory_.clear(); }

 private:
  void Copy(Stream& stream, bool up) {
    for (size_t k = 0; k < host_.size(); ++k) {
      std::byte* host = host_[k].tensor().data;
      std::byte* gpu = tensors_[k].data;
      const absl::Status copied = up ? device_.Copy(stream, host, gpu, memory_[k]->bytes())
                                     : device_.Copy(stream, gpu, host, memory_[k]->bytes());
      EXPECT_TRUE(copied.ok()) << copied;
    }
  }

  Device& device_;
  std::vector<Values>& host_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<Tensor> tensors_;
};

}  // namespace bucketd::agent
