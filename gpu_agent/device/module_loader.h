// Looks for the GPU module beside the running program and says what came of it.
#pragma once

#include <string>

#include "gpu_agent/device/gpu_module.h"

namespace bucketd::agent {

struct GpuBackend {
  const GpuModule* module = nullptr;  // null: the host; else it stays loaded for good
  int gpus = 0;
  // Why, for logs: "2 GPUs, NCCL 2.27.3 (libnccl.so.2)", "/opt/bucketd/libbucketd_cuda.so is
  // absent", "no GPU can be used: CUDA driver version is insufficient for CUDA runtime version".
  std::string reason;
};

// libbucketd_cuda.so in the folder of the program or library that holds this code, else in the
// folder lib beside that one (/usr/lib for /usr/bin), unless the environment's BUCKETD_CUDA_MODULE
// names another file, or is "off".
std::string GpuModulePath();

// Loads it and asks for GPUs; any failure is the host and a reason. Thread-safe; milliseconds
// without a GPU, up to a second with one (the driver's start).
GpuBackend LoadGpuBackend(const std::string& path = GpuModulePath());

}  // namespace bucketd::agent
