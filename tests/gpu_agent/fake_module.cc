// A GPU module for the loader's tests: of another build, or with as many GPUs as FAKE_GPUS says and
// no NCCL.
#include "gpu_agent/device/gpu_module.h"

extern "C" __attribute__((visibility("default"))) const bucketd::agent::GpuModule*
bucketd_cuda_module_v1() {
  using namespace bucketd::agent;
  static GpuModule module{};
  module.version = FAKE_VERSION;
  module.count = []() -> absl::StatusOr<int> { return FAKE_GPUS; };
  module.nccl_version = []() -> absl::StatusOr<std::string> {
    return absl::UnavailableError("no NCCL");
  };
  return &module;
}
