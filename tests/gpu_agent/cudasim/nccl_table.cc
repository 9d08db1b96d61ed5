// NCCL's functions, as the table of gpu_agent/cuda/nccl_api.h names them.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_agent/cudasim/nccl.h"

namespace bucketd::agent::sim {
namespace {

// Of the thread that is between GroupStart and GroupEnd.
struct Grouped {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Call> calls;
};
thread_local int depth = 0;
thread_local std::vector<Grouped> grouped;

int CurrentGpu() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

ncclResult_t End() {
  Locked world;
  ncclResult_t result = ncclSuccess;
  for (Grouped& one : std::exchange(grouped, {})) {
    SimStream* stream = world->Of(one.stream);
    if (stream == nullptr) return ncclInvalidArgument;
    const ncclResult_t launched = world->nccl().Launch(one.comm, *stream, std::move(one.calls));
    if (launched != ncclSuccess) result = launched;
  }
  return result;
}

ncclResult_t Enqueue(const Call& call, ncclComm_t comm, cudaStream_t stream) {
  if (grouped.empty() || grouped.back().comm != comm || grouped.back().stream != stream) {
    grouped.push_back({comm, stream, {}});
  }
  grouped.back().calls.push_back(call);
  return depth > 0 ? ncclSuccess : End();
}

void FillCollectives(NcclApi& api) {
  api.GroupStart = [] {
    ++depth;
    return ncclSuccess;
  };
  api.GroupEnd = [] { return --depth > 0 ? ncclSuccess : End(); };
  api.AllGather = [](const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                     cudaStream_t stream) {
    return Enqueue({Kind::kAllGather, in, out, count, type, ncclSum}, comm, stream);
  };
  api.ReduceScatter = [](const void* in, void* out, size_t count, ncclDataType_t type,
                         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return Enqueue({Kind::kReduceScatter, in, out, count, type, op}, comm, stream);
  };
  api.AllReduce = [](const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                     ncclComm_t comm, cudaStream_t stream) {
    return Enqueue({Kind::kAllReduce, in, out, count, type, op}, comm, stream);
  };
}

void FillCommunicators(NcclApi& api) {
  api.CommInitRankConfig = [](ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                              ncclConfig_t* config) {
    Locked world;
    if (config->blocking != 0) world->Find("a communicator that blocks");
    return world->nccl().Init(comm, size, std::string(id.internal, sizeof(id.internal)), rank,
                              CurrentGpu(), config->commName);
  };
  api.CommSplit = [](ncclComm_t parent, int color, int key, ncclComm_t* child,
                     ncclConfig_t* config) {
    Locked world;
    if (config->blocking != 0) world->Find("a communicator that blocks");
    if (config->splitShare != 0) world->Find("a child that ends with its parent");
    return world->nccl().Split(parent, color, key, child, config->commName);
  };
  api.CommCount = [](ncclComm_t comm, int* ranks) { return Locked()->nccl().Count(comm, ranks); };
  api.CommGetAsyncError = [](ncclComm_t comm, ncclResult_t* state) {
    Locked world;
    world->Advance();
    return world->nccl().Poll(comm, state);
  };
  api.CommFinalize = [](ncclComm_t comm) { return Locked()->nccl().Finalize(comm); };
  api.CommDestroy = [](ncclComm_t comm) { return Locked()->nccl().Destroy(comm); };
  api.CommAbort = [](ncclComm_t comm) { return Locked()->nccl().Abort(comm); };
}

void FillMemory(NcclApi& api) {
  api.MemAlloc = [](void** memory, size_t bytes) {
    Locked world;
    const auto& memory_of = world->options().memory;
    if (memory_of != nullptr && bytes > memory_of(CurrentGpu())) return ncclSystemError;
    *memory = world->memory().Allocate(CurrentGpu(), bytes, 4096);
    return *memory == nullptr ? ncclSystemError : ncclSuccess;
  };
  // It unmaps at once.
  api.MemFree = [](void* memory) {
    Locked world;
    if (memory == nullptr) return ncclSuccess;
    world->nccl().Freed(memory);
    world->memory().Free(memory, world->host(), "ncclMemFree");
    return ncclSuccess;
  };
  api.CommWindowRegister = [](ncclComm_t comm, void* memory, size_t, ncclWindow_t* window, int) {
    return Locked()->nccl().Register(comm, memory, window);
  };
  api.CommWindowDeregister = [](ncclComm_t comm, ncclWindow_t window) {
    return Locked()->nccl().Deregister(comm, window);
  };
}

}  // namespace

std::shared_ptr<const NcclApi> NcclTable() {
  auto api = std::make_shared<NcclApi>();
  api->version = NCCL_VERSION_CODE;
  api->file = "cudasim";
  api->of_process = !World::now()->options().foreign_nccl;
  api->GetErrorString = [](ncclResult_t result) {
    return result == ncclRemoteError ? "remote error" : "an error";
  };
  api->GetLastError = [](ncclComm_t) { return ""; };
  api->GetUniqueId = [](ncclUniqueId* id) {
    static std::atomic<int> next = 0;
    std::memset(id->internal, 0, sizeof(id->internal));
    const std::string text = std::to_string(++next);
    std::memcpy(id->internal, text.data(), text.size());
    return ncclSuccess;
  };
  FillCommunicators(*api);
  FillCollectives(*api);
  FillMemory(*api);
  return api;
}

}  // namespace bucketd::agent::sim
