// What the module with everything of CUDA in it hands over. Programs link nothing of CUDA: they
// load the module where there is one (module_loader.h) and go on without where there is none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

class Communicator;
struct Collective;

struct NcclOptions {
  std::string id;  // GpuModule::nccl_id of one rank, handed to all
  int rank = 0;
  int size = 1;
  std::string name;  // what NCCL's own logs call the group
  // How long the start, and each launch until it is enqueued, may take, and how long somebody waits
  // for what was launched.
  absl::Duration timeout = absl::Seconds(30);
  std::shared_ptr<Communicator> host;  // of the same ranks, over which they agree on plans
  // Somebody else's communicator of this process (an ncclComm_t) over the same ranks in the same
  // order. Instead of meeting by `id`, they split theirs off it: those that hold the same `color`
  // and run the same NCCL, which have to be all. Nothing is launched on it meanwhile.
  void* parent = nullptr;
  int color = 0;
};

// A module of another build is refused: layouts of types cross this table.
inline constexpr uint32_t kGpuModuleVersion = 8;
inline constexpr char kGpuModuleEntry[] = "bucketd_cuda_module_v1";

// All functions are thread-safe.
struct GpuModule {
  uint32_t version;
  // How many GPUs there are; an error says why none can be used.
  absl::StatusOr<int> (*count)();
  // Lives as long as what it made. Several of one index are one device.
  absl::StatusOr<std::unique_ptr<Device>> (*open)(int index);
  // A stream of somebody else's, a cudaStream_t, which outlives what is returned. Null is the
  // default stream.
  absl::StatusOr<std::unique_ptr<Stream>> (*adopt)(Device& device, void* stream);
  // Whether a split communicator has it: UNIMPLEMENTED says what NCCL has none of, UNAVAILABLE why
  // none can be split, as below. Counts and memory do not matter.
  absl::Status (*takes)(const Collective& collective);
  // An id for one process group. UNAVAILABLE without an NCCL of 2.18 or newer.
  absl::StatusOr<std::string> (*nccl_id)();
  // Blocks until all ranks are there, or the timeout. A rank a GPU, unless NCCL is told otherwise.
  // Of a split: UNAVAILABLE where this NCCL is not the process's own, of which the parent is;
  // FAILED_PRECONDITION where the parent is of another size, or ranks differ in color or in NCCL's
  // version.
  absl::StatusOr<std::unique_ptr<Communicator>> (*nccl)(Device& device, const NcclOptions& options);
  // "NCCL 2.27.3 (libnccl.so.2)"; UNAVAILABLE: why there is none.
  absl::StatusOr<std::string> (*nccl_version)();
  // This process's context on the GPU goes, with the memory that it takes. Nothing that was made
  // there is left, and nobody works there meanwhile; who opens it later has a new one.
  absl::Status (*leave)(int index);
};
using GpuModuleEntry = const GpuModule* (*)();

}  // namespace bucketd::agent
