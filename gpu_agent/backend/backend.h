// What runs the buckets of this process: the processor and the socket ring, or a GPU, its kernels
// and NCCL. Everybody else asks here and need not know which it is.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/comm/ring.h"
#include "gpu_agent/device/module_loader.h"
#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

// Outlives what its device and Connect made. Thread-safe.
class Backend {
 public:
  // `asked` is "ring", "nccl", or "auto": nccl where the module, NCCL and a GPU for each of the
  // `ranks` of this host are there, else ring. `rank`, of this host, takes the GPU of its number;
  // with NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment, which NCCL heeds from 2.30 on, GPUs are
  // shared. OUT_OF_RANGE: another word. UNAVAILABLE: nccl was asked for, and why it cannot be.
  // With an `interface`, by name or address, NCCL's connections between hosts are made there, too:
  // NCCL_SOCKET_IFNAME is set for the process, unless somebody has set it.
  static absl::StatusOr<std::unique_ptr<Backend>> Open(const std::string& asked, int rank,
                                                       int ranks, const std::string& interface,
                                                       const std::string& module = GpuModulePath());

  const std::string& name() const { return name_; }  // "ring" or "nccl"
  // For logs: "ring: /opt/bucketd/libbucketd_cuda.so is absent", "nccl: 2 GPUs, NCCL 2.27.3
  // (libnccl.so.2)".
  const std::string& reason() const { return reason_; }
  // REQUIRES for this and Connect: not after Leave.
  Device& device() { return *device_; }

  // Takes nothing of a GPU's memory from now on, its context included, until Return. What was made
  // of the backend is gone before. Nothing on the host; repeated, nothing.
  absl::Status Leave();
  // Opens the device again. Nothing where it was not left.
  absl::Status Return();
  // UNAVAILABLE: an error such as an illegal access has destroyed this process's context on the
  // GPU, where nothing runs until another process begins. OK where it was left, and on the host.
  absl::Status Check();

  // The process group of connected and authenticated neighbours: their ring itself, or NCCL's, the
  // id of which travels over the ring and nowhere else. All ranks call it. Blocks with NCCL, until
  // it has started on every rank or the options' timeout; `group` is its name in NCCL's logs.
  // FAILED_PRECONDITION with both versions where two ranks have different NCCLs.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(RingPeers peers, const RingOptions& options,
                                                        const std::string& group);

 private:
  Backend() = default;
  static absl::StatusOr<std::unique_ptr<Backend>> OnGpu(const GpuBackend& found, int index);
  static std::unique_ptr<Backend> OnHost(const std::string& why);

  const GpuModule* module_ = nullptr;  // null: the ring
  int index_ = -1;                     // of the GPU
  std::string name_, reason_;
  std::unique_ptr<Device> device_;  // null: it was left
};

}  // namespace bucketd::agent
