// A GPU module over the simulation, for programs that load one (tests/python/simulated_gpus.py): a
// trainer's own calls are at the end.
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "gpu_agent/cuda/cuda_device.h"
#include "gpu_agent/device/gpu_module.h"
#include "tests/gpu_agent/cudasim/world.h"
#include "tests/gpu_agent/platform.h"

namespace bucketd::agent {
namespace {

CudaStream StreamOf(int gpu, void* stream) {
  return CudaStream(gpu, static_cast<cudaStream_t>(stream), false);
}

}  // namespace
}  // namespace bucketd::agent

#define SIMULATED extern "C" __attribute__((visibility("default")))

using bucketd::agent::sim::World;

SIMULATED const bucketd::agent::GpuModule* bucketd_cuda_module_v1() {
  using namespace bucketd::agent;
  static const GpuModule module = [] {
    GpuModule made = *Gpus().module;
    made.version = kGpuModuleVersion;
    made.count = []() -> absl::StatusOr<int> { return Ranks(); };
    made.nccl_version = []() -> absl::StatusOr<std::string> { return "NCCL of the simulation"; };
    made.leave = LeaveDevice;
    return made;
  }();
  return &module;
}

// Worlds stay: whoever failed in one may still call it.
SIMULATED void simulated_begin(uint64_t seed) {
  new World({.seed = seed, .devices = bucketd::agent::Ranks()});
}

// What was found, a line each.
SIMULATED int simulated_findings(char* text, int room) {
  World::now()->Drain();
  const std::string all = absl::StrJoin(World::now()->findings(), "\n");
  return snprintf(text, static_cast<size_t>(room), "%s", all.c_str());
}

// In the stream's order, as a trainer's allocator gives and takes.
SIMULATED void* simulated_alloc(int gpu, void* stream, int64_t bytes) {
  const bucketd::agent::CurrentDevice current(gpu);
  void* memory = nullptr;
  cudaMallocAsync(&memory, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream));
  return memory;
}

SIMULATED void simulated_free(int gpu, void* stream, void* memory) {
  const bucketd::agent::CurrentDevice current(gpu);
  cudaFreeAsync(memory, static_cast<cudaStream_t>(stream));
}

SIMULATED void* simulated_stream(int gpu) {
  const bucketd::agent::CurrentDevice current(gpu);
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

// One way memory is the host's. 1: it is through.
SIMULATED int simulated_copy(int gpu, void* stream, const void* from, void* to, int64_t bytes) {
  bucketd::agent::CudaDevice device(gpu, "a trainer's GPU", bucketd::agent::Api());
  auto on = bucketd::agent::StreamOf(gpu, stream);
  if (!device.Copy(on, from, to, bytes).ok()) return 0;
  return on.Record()->Wait(absl::Now() + absl::Seconds(20)).ok() ? 1 : 0;
}

// A graph of what is enqueued in between; it lives until it is destroyed.
SIMULATED void simulated_capture(void* stream) {
  World::now()->BeginCapture(static_cast<cudaStream_t>(stream));
}

SIMULATED void* simulated_captured(void* stream) {
  return World::now()->EndCapture(static_cast<cudaStream_t>(stream));
}

SIMULATED void simulated_replay(void* stream, void* graph) {
  World::now()->Replay(*static_cast<bucketd::agent::sim::SimGraph*>(graph),
                       static_cast<cudaStream_t>(stream));
}

SIMULATED void simulated_destroy(void* graph) {
  World::now()->Destroy(*static_cast<bucketd::agent::sim::SimGraph*>(graph));
}

SIMULATED void simulated_id(ncclUniqueId* id) { bucketd::agent::Api()->GetUniqueId(id); }

// The trainer's own communicator; all ranks ask at once.
SIMULATED void* simulated_communicator(const ncclUniqueId* id, int rank) {
  const bucketd::agent::CurrentDevice current(bucketd::agent::GpuOf(rank));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  bucketd::agent::Api()->CommInitRankConfig(&comm, bucketd::agent::Ranks(), *id, rank, &config);
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) bucketd::agent::Api()->CommGetAsyncError(comm, &state);
  return state == ncclSuccess ? comm : nullptr;
}
