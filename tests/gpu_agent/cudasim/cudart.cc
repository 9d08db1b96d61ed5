// The CUDA runtime's functions that gpu_agent/cuda calls, and its kernel.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu_agent/cuda/pack_kernels.h"
#include "gpu_agent/pack/segments.h"
#include "tests/gpu_agent/cudasim/world.h"

using bucketd::agent::sim::Locked;
using bucketd::agent::sim::Recording;
using bucketd::agent::sim::SimEvent;
using bucketd::agent::sim::SimGraph;
using bucketd::agent::sim::SimStream;
using bucketd::agent::sim::Toucher;
using bucketd::agent::sim::World;

namespace {

thread_local int device_of_thread = 0;
thread_local std::vector<int> pushed;  // contexts, by their GPUs
thread_local bool in_host_function = false;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

int DeviceOfThread() { return pushed.empty() ? device_of_thread : pushed.back(); }

// Of every call that works on a GPU. The thread's has a context from the first one on.
int Current() {
  if (in_host_function) World::now()->Find("a CUDA call in a host function");
  World::now()->OpenContext(DeviceOfThread());
  return DeviceOfThread();
}

// Of calls that no capture survives. False: this one is refused.
bool NotInCapture(const char* call) {
  if (capture_mode == cudaStreamCaptureModeRelaxed) return true;
  if (!World::now()->capturing(DeviceOfThread())) return true;
  World::now()->Find(std::string(call) + " while a stream is captured");
  return false;
}

// A context is its GPU's number, from 1 on.
CUresult Retain(CUcontext* context, CUdevice device) {
  Locked world;
  if (device < 0 || device >= world->options().devices) return CUDA_ERROR_INVALID_DEVICE;
  if (device == world->options().taken) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  world->OpenContext(device);
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}

CUresult Release(CUdevice) { return CUDA_SUCCESS; }

CUresult Push(CUcontext context) {
  if (World::now() == nullptr) return CUDA_ERROR_NO_DEVICE;
  pushed.push_back(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1);
  Locked()->OpenContext(pushed.back());
  return CUDA_SUCCESS;
}

CUresult Pop(CUcontext*) {
  if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  pushed.pop_back();
  return CUDA_SUCCESS;
}

CUresult WaitValue(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  Locked world;
  SimStream* known = world->Of(stream);
  auto* memory = reinterpret_cast<uint32_t*>(address);
  if (known == nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ || !world->memory().IsPinned(memory)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  world->Enqueue(
      *known, bucketd::agent::sim::kGate, [](const Toucher&) {},
      [memory, value] { return std::atomic_ref(*memory).load() >= value; });
  return CUDA_SUCCESS;
}

void Move(World& world, const void* from, void* to, size_t bytes, const Toucher& by) {
  const std::byte* in = world.memory().Touch(from, bytes, false, by);
  std::byte* out = world.memory().Touch(to, bytes, true, by);
  if (in != nullptr && out != nullptr) std::memmove(out, in, bytes);
}

}  // namespace

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of cudasim";
}

cudaError_t cudaGetDeviceCount(int* count) {
  const World* world = World::now();
  if (world == nullptr) return cudaErrorNoDevice;
  *count = world->options().devices;
  return world->options().driver == 0 ? cudaSuccess : cudaErrorInsufficientDriver;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = World::now()->options().driver;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
  const std::string wanted = name;
  *function = wanted == "cuDevicePrimaryCtxRetain"    ? reinterpret_cast<void*>(&Retain)
              : wanted == "cuDevicePrimaryCtxRelease" ? reinterpret_cast<void*>(&Release)
              : wanted == "cuCtxPushCurrent"          ? reinterpret_cast<void*>(&Push)
              : wanted == "cuCtxPopCurrent"           ? reinterpret_cast<void*>(&Pop)
              : wanted == "cuStreamWaitValue32"       ? reinterpret_cast<void*>(&WaitValue)
                                                      : nullptr;
  return *function == nullptr ? cudaErrorSymbolNotFound : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = DeviceOfThread();
  return cudaSuccess;
}

// From CUDA 12 on it makes the context.
cudaError_t cudaSetDevice(int device) {
  Locked world;
  if (device < 0 || device >= world->options().devices) return cudaErrorInvalidDevice;
  if (device == world->options().taken) return cudaErrorDevicesUnavailable;
  (pushed.empty() ? device_of_thread : pushed.back()) = device;
  world->OpenContext(device);
  return cudaSuccess;
}

cudaError_t cudaDeviceReset() {
  Locked world;
  world->EndContext(DeviceOfThread());
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (World::now() == nullptr || device >= World::now()->options().devices) {
    return cudaErrorInvalidDevice;
  }
  *properties = {};
  std::strcpy(properties->name, "cudasim");
  properties->major = 9;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Locked world;
  *total = size_t{1} << 37;
  *free = *total - world->memory().bytes_on(Current());
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  World::now()->BeginCapture(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(World::now()->EndCapture(stream));
  return cudaSuccess;
}

// A graph and what is launched of it are one here, with two handles.
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  World::now()->Hold(*reinterpret_cast<SimGraph*>(graph));
  *executable = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  World::now()->Replay(*reinterpret_cast<SimGraph*>(executable), stream);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  World::now()->Destroy(*reinterpret_cast<SimGraph*>(executable));
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  World::now()->Destroy(*reinterpret_cast<SimGraph*>(graph));
  return cudaSuccess;
}

// The runtime makes the thread's context first, as for calls that work there.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (World::now() != nullptr) {
    Locked world;
    Current();
  }
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  Locked world;
  if (!NotInCapture("cudaMalloc")) return cudaErrorStreamCaptureUnsupported;
  *memory = world->memory().Allocate(Current(), bytes, 256);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// It waits for the whole device, as CUDA's does.
cudaError_t cudaFree(void* memory) {
  Locked world;
  Current();
  if (memory == nullptr) return cudaSuccess;
  if (!NotInCapture("cudaFree")) return cudaErrorStreamCaptureUnsupported;
  world->Drain();
  world->memory().Free(memory, world->host(), "cudaFree");
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  Locked world;
  Current();
  if (!NotInCapture("cudaHostAlloc")) return cudaErrorStreamCaptureUnsupported;
  *memory = world->memory().Allocate(-1, bytes, 4096);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  Locked world;
  Current();
  if (memory != nullptr) world->memory().Free(memory, world->host(), "cudaFreeHost");
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  Locked world;
  *attributes = {};
  attributes->type = world->memory().IsDevice(address)   ? cudaMemoryTypeDevice
                     : world->memory().IsPinned(address) ? cudaMemoryTypeHost
                                                         : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  Locked world;
  if ((flags & cudaStreamNonBlocking) == 0) world->Find("a stream that waits for the default one");
  SimStream* made = world->NewStream(Current());
  made->priority = priority;
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

// What is on it goes on.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (World::now() == nullptr) return cudaErrorNoDevice;
  Locked world;
  Current();
  SimStream* known = world->Of(stream);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  known->destroyed = true;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (World::now() == nullptr) return cudaErrorNoDevice;
  Locked world;
  Current();
  if (!NotInCapture("cudaStreamQuery")) return cudaErrorStreamCaptureUnsupported;
  world->Advance();
  const SimStream* known = world->Of(stream);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  if (known->capture != nullptr) {
    world->Find("cudaStreamQuery of a stream in a capture");
    return cudaErrorStreamCaptureUnsupported;
  }
  if (!known->ops.empty()) return cudaErrorNotReady;
  world->host().Join(known->clock);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Locked world;
  Current();
  SimStream* known = world->Of(stream);
  const SimEvent* of = world->Of(event);
  if (known == nullptr || of == nullptr) return cudaErrorInvalidResourceHandle;
  return of->recording == nullptr ? cudaSuccess : world->Await(*known, of->recording);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
#if CUDART_VERSION >= 13000
                                     const cudaGraphEdgeData**,
#endif
                                     size_t*) {
  Locked world;
  const SimStream* known = world->Of(stream);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  *status = known->capture == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
  if (known->capture != nullptr) *id = known->capture->id;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (World::now() == nullptr) return cudaErrorNoDevice;
  Locked world;
  *event = reinterpret_cast<cudaEvent_t>(world->NewEvent(Current()));
  world->MadeEvent(Current());
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (World::now() == nullptr) return cudaErrorNoDevice;
  Locked world;
  Current();
  return world->Forget(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Locked world;
  Current();
  SimStream* known = world->Of(stream);
  SimEvent* of = world->Of(event);
  if (known == nullptr || of == nullptr || known->device != of->device) {
    return cudaErrorInvalidResourceHandle;
  }
  of->recording = std::make_shared<Recording>();
  world->Record(*known, of->recording);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (World::now() == nullptr) return cudaErrorNoDevice;
  Locked world;
  Current();
  if (!NotInCapture("cudaEventQuery")) return cudaErrorStreamCaptureUnsupported;
  world->Advance();
  const SimEvent* of = world->Of(event);
  if (of == nullptr) return cudaErrorInvalidResourceHandle;
  if (of->recording == nullptr) return cudaSuccess;
  if (of->recording->graph != nullptr) {
    world->Find("cudaEventQuery of an event in a capture");
    return cudaErrorCapturedEvent;
  }
  if (!of->recording->done) return cudaErrorNotReady;
  world->host().Join(of->recording->clock);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Locked world;
  Current();
  const SimEvent *from = world->Of(begin), *to = world->Of(end);
  if (from == nullptr || to == nullptr) return cudaErrorInvalidResourceHandle;
  *milliseconds = static_cast<float>(to->recording->at_ns - from->recording->at_ns) / 1e6F;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  Locked world;
  Current();
  SimStream* known = world->Of(stream);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  world->Enqueue(*known, "a host function", [function, data](const Toucher&) {
    in_host_function = true;
    function(data);
    in_host_function = false;
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Locked world;
  Current();
  SimStream* known = world->Of(stream);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  const auto plain = [&](const void* memory) {
    return !world->memory().IsDevice(memory) && !world->memory().IsPinned(memory);
  };
  if (plain(to)) world->Find("a copy to plain memory of the host, for which the thread is held");
  if (!plain(from)) {
    world->Enqueue(*known, "a copy", [w = &*world, to, from, bytes](const Toucher& by) {
      Move(*w, from, to, bytes, by);
    });
    return cudaSuccess;
  }
  if (known->capture != nullptr) world->Find("a copy from plain memory of the host in a capture");
  if (!NotInCapture("cudaMemcpyAsync of plain memory of the host")) {
    return cudaErrorStreamCaptureUnsupported;
  }
  // Plain memory is read before the call returns.
  const auto* begin = static_cast<const std::byte*>(from);
  const std::vector<std::byte> staged(begin, begin + bytes);
  world->Enqueue(*known, "a copy", [w = &*world, to, staged](const Toucher& by) {
    std::byte* out = w->memory().Touch(to, staged.size(), true, by);
    if (out != nullptr) std::memcpy(out, staged.data(), staged.size());
  });
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  Locked world;
  Current();
  SimStream* known = world->Of(stream);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  *memory = world->memory().Allocate(known->device, bytes, 256);
  world->MadeTable(known->device);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  Locked world;
  Current();
  SimStream* known = world->Of(stream);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  world->Enqueue(*known, "a free", [w = &*world, memory](const Toucher& by) {
    w->memory().Free(memory, *by.clock, "cudaFreeAsync");
  });
  return cudaSuccess;
}

}  // extern "C"

namespace bucketd::agent {

cudaError_t ResidentBlocks(int& blocks) {
  blocks = 4;
  return cudaSuccess;
}

cudaError_t LaunchTiles(const Tile* tiles, uint32_t count, int, cudaStream_t stream) {
  Locked world;
  Current();
  SimStream* known = world->Of(stream);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  world->Enqueue(*known, "a copy of tiles", [w = &*world, tiles, count](const Toucher& by) {
    sim::Memory& memory = w->memory();
    const std::byte* table = memory.Touch(tiles, count * sizeof(Tile), false, by);
    if (table == nullptr) return;
    for (uint32_t k = 0; k < count; ++k) {
      Tile tile;
      std::memcpy(&tile, table + k * sizeof(Tile), sizeof(Tile));
      if (tile.move != agent::Move::kZero) {
        tile.from = memory.Touch(tile.from, tile.count * ReadSize(tile.move), false, by);
      }
      tile.to = memory.Touch(tile.to, tile.count * WriteSize(tile.move), true, by);
      const bool there = tile.move == agent::Move::kZero || tile.from != nullptr;
      if (there && tile.to != nullptr) CopyOnHost({&tile, 1});
    }
  });
  return cudaSuccess;
}

}  // namespace bucketd::agent
