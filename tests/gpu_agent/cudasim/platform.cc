// A trainer's GPUs as simulated ones, those of the world that there is.
#include "tests/gpu_agent/platform.h"

#include <utility>

#include "gpu_agent/cuda/cuda_device.h"
#include "gpu_agent/cuda/nccl_communicator.h"
#include "gpu_agent/device/gpu_module.h"
#include "tests/gpu_agent/cudasim/world.h"

namespace bucketd::agent {
namespace {

// gpu_agent/cuda/module.cc over the simulation's NCCL, as far as the library uses it.
const GpuModule& Module() {
  static const GpuModule* made = [] {
    auto* module = new GpuModule{};
    module->open = [](int index) -> absl::StatusOr<std::unique_ptr<Device>> {
      return std::make_unique<CudaDevice>(index, "cuda simulated", Api());
    };
    module->adopt = [](Device& device, void* stream) -> absl::StatusOr<std::unique_ptr<Stream>> {
      auto& gpu = dynamic_cast<CudaDevice&>(device);
      return std::make_unique<CudaStream>(gpu.index(), static_cast<cudaStream_t>(stream), false,
                                          gpu.spare_events());
    };
    module->takes = [](const Collective& collective) { return Takes(*Api(), collective); };
    module->nccl = [](Device& device,
                      const NcclOptions& options) -> absl::StatusOr<std::unique_ptr<Communicator>> {
      auto& gpu = dynamic_cast<CudaDevice&>(device);
      auto api = std::make_shared<NcclApi>(*Api());
      const auto& version = sim::World::now()->options().nccl_version;
      if (version != nullptr) api->version = version(gpu.index());
      return NcclCommunicator::Split(std::move(api), gpu, options);
    };
    return module;
  }();
  return *made;
}

}  // namespace

std::shared_ptr<const NcclApi> Api() { return sim::World::now()->nccl_api(); }

GpuBackend Gpus() { return {&Module(), Ranks(), "simulated GPUs"}; }

int Ranks() { return 2; }

int GpuOf(int rank) { return rank; }

bool Simulated() { return true; }

}  // namespace bucketd::agent
