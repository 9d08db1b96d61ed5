// NCCL's functions, as the table of gpu_agent/cuda/nccl_api.h names them.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

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

// Blocks until `over`, while devices and other threads go on; a finding where that takes too long.
void Block(const World::Guest& world, const char* call, const std::function<bool()>& over) {
  const absl::Time begin = absl::Now();
  for (; !world.ends(); absl::SleepFor(absl::Microseconds(50))) {
    const Locked locked;
    locked->Advance();
    if (over()) return;
    if (absl::Now() - begin < locked->options().patience) continue;
    return locked->Find(absl::StrCat(call, " does not return"));
  }
}

// What becomes of a call on a communicator that blocks.
ncclResult_t ToItsEnd(const World::Guest& world, ncclComm_t comm, const char* call,
                      ncclResult_t begun) {
  auto* self = reinterpret_cast<Comm*>(comm);
  const bool goes_on = begun == ncclSuccess || begun == ncclInProgress;
  if (!goes_on || self == nullptr || !self->blocking) return begun;
  Block(world, call, [self] { return Nccl::GoOn(*self); });
  return self->ending ? ncclInternalError : self->error;
}

ncclResult_t End() {
  const World::Guest guest;
  ncclResult_t result = ncclSuccess;
  for (Grouped& one : std::exchange(grouped, {})) {
    ncclResult_t launched = ncclInvalidArgument;
    {
      const Locked world;
      SimStream* stream = world->Of(one.stream);
      if (stream == nullptr) return launched;
      launched = world->nccl().Launch(one.comm, *stream, std::move(one.calls));
    }
    launched = ToItsEnd(guest, one.comm, "a collective", launched);
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

// Not before its kernels and graphs are.
ncclResult_t Ended(const World::Guest& world, const char* call, Comm* comm) {
  if (comm == nullptr) return ncclInvalidArgument;
  Block(world, call, [comm] { return Nccl::Ended(*comm); });
  const Locked locked;
  locked->nccl().EndFor(*comm);
  return ncclSuccess;
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
    const World::Guest guest;
    ncclResult_t begun = ncclSuccess;
    {
      const Locked world;
      // Ours have names, a trainer's have none.
      if (config->blocking != 0 && config->commName != nullptr) {
        world->Find("a communicator that blocks");
      }
      begun = world->nccl().Init(comm, size, std::string(id.internal, sizeof(id.internal)), rank,
                                 CurrentGpu(), *config);
    }
    return ToItsEnd(guest, *comm, "ncclCommInitRankConfig", begun);
  };
  api.CommSplit = [](ncclComm_t parent, int color, int key, ncclComm_t* child,
                     ncclConfig_t* config) {
    const World::Guest guest;
    ncclResult_t begun = ncclSuccess;
    {
      const Locked world;
      if (config->blocking != 0) world->Find("a communicator that blocks");
      if (config->splitShare != 0) world->Find("a child that ends with its parent");
      begun = world->nccl().Split(parent, color, key, child, config->commName);
    }
    return ToItsEnd(guest, parent, "ncclCommSplit", begun);
  };
  api.CommCount = [](ncclComm_t comm, int* ranks) { return Locked()->nccl().Count(comm, ranks); };
  api.CommGetAsyncError = [](ncclComm_t comm, ncclResult_t* state) {
    Locked world;
    world->Advance();
    return world->nccl().Poll(comm, state);
  };
  api.CommFinalize = [](ncclComm_t comm) { return Locked()->nccl().Finalize(comm); };
  api.CommDestroy = [](ncclComm_t comm) {
    const World::Guest guest;
    Comm* self = Locked()->nccl().BeginDestroy(comm);
    return Ended(guest, "ncclCommDestroy", self);
  };
  api.CommAbort = [](ncclComm_t comm) {
    const World::Guest guest;
    Comm* self = Locked()->nccl().BeginAbort(comm);
    return Ended(guest, "ncclCommAbort", self);
  };
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
