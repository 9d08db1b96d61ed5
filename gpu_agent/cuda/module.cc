// What libbucketd_cuda.so hands over: gpu_agent/device/gpu_module.h.
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

#include "gpu_agent/cuda/cuda_device.h"
#include "gpu_agent/cuda/nccl_api.h"
#include "gpu_agent/cuda/nccl_communicator.h"
#include "gpu_agent/device/gpu_module.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// Found once: what is in the process when the first device is opened.
const absl::StatusOr<std::shared_ptr<const NcclApi>>& Nccl() {
  static const auto* nccl = new absl::StatusOr<std::shared_ptr<const NcclApi>>(NcclApi::Load());
  return *nccl;
}

absl::StatusOr<int> Count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) return 0;
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return absl::UnavailableError(
        driver == 0 ? "there is no CUDA driver"
                    : absl::StrCat("the CUDA driver is for ", driver / 1000, ".", driver / 10 % 100,
                                   ", this build wants ", CUDART_VERSION / 1000, ".",
                                   CUDART_VERSION / 10 % 100,
                                   " or newer: update the driver, or build with an older CUDA"));
  }
  if (error != cudaSuccess) return absl::UnavailableError(cudaGetErrorString(error));
  return count;
}

absl::StatusOr<CudaDevice*> AsCuda(Device& device) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda != nullptr) return cuda;
  return absl::InvalidArgumentError(absl::StrCat(device.name(), " is no GPU"));
}

absl::StatusOr<std::unique_ptr<Device>> Open(int index) {
  return CudaDevice::Open(index, Nccl().ok() ? *Nccl() : nullptr);
}

absl::StatusOr<std::string> NcclId() {
  RETURN_IF_ERROR(Nccl().status());
  ncclUniqueId id;
  const ncclResult_t result = (*Nccl())->GetUniqueId(&id);
  if (result != ncclSuccess) {
    return absl::InternalError(
        absl::StrCat((*Nccl())->ToString(), ": an id: ", (*Nccl())->GetErrorString(result)));
  }
  return std::string(id.internal, sizeof(id.internal));
}

absl::StatusOr<std::unique_ptr<Communicator>> NewNccl(Device& device, const NcclOptions& options) {
  RETURN_IF_ERROR(Nccl().status());
  ASSIGN_OR_RETURN(CudaDevice * cuda, AsCuda(device));
  return options.parent != nullptr ? NcclCommunicator::Split(*Nccl(), *cuda, options)
                                   : NcclCommunicator::Create(*Nccl(), *cuda, options);
}

absl::StatusOr<std::unique_ptr<Stream>> Adopt(Device& device, void* stream) {
  ASSIGN_OR_RETURN(const CudaDevice* cuda, AsCuda(device));
  return std::make_unique<CudaStream>(cuda->index(), static_cast<cudaStream_t>(stream), false,
                                      cuda->spare_events());
}

absl::Status TakenByNccl(const Collective& collective) {
  RETURN_IF_ERROR(Nccl().status());
  return Takes(**Nccl(), collective);
}

absl::StatusOr<std::string> NcclVersion() {
  RETURN_IF_ERROR(Nccl().status());
  return (*Nccl())->ToString();
}

}  // namespace
}  // namespace bucketd::agent

extern "C" __attribute__((visibility("default"))) const bucketd::agent::GpuModule*
bucketd_cuda_module_v1() {
  using namespace bucketd::agent;
  static constexpr GpuModule kModule = {kGpuModuleVersion, Count,  Open,    Adopt,
                                        TakenByNccl,       NcclId, NewNccl, NcclVersion,
                                        LeaveDevice};
  return &kModule;
}
