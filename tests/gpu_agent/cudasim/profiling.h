// NCCL's side of a profiler plugin: which one it loads and when, in which order it calls it and
// from which threads. As in NCCL 2.27 (interface 4) and 2.28 to 2.30 (5): src/plugin/profiler.cc,
// src/transport/profiler.cc, hostStreamPlanTask and collTaskAppend of src/enqueue.cc.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu_agent/profiler/nccl_profiler_abi.h"

namespace bucketd::agent::sim {

// One collective on one rank, as the simulation itself knows it.
struct KernelRun {
  std::string comm;  // its name
  int rank = 0;
  std::string what;  // "AllGather", ...
  uint64_t sequence = 0;
  size_t together = 1;  // collectives of the same kernel
  int64_t begin_ns = 0, end_ns = 0;
};

// A collective that is asked for.
struct ProfiledCall {
  std::string what, type;  // in NCCL's names
  size_t count = 0, type_bytes = 1;
  void* call = nullptr;  // handles
  void* coll = nullptr;
  std::vector<void*> channels = {};
  uint64_t sequence = 0;
};
// All that are one kernel.
using ProfiledLaunch = std::vector<ProfiledCall>;

// Calls come under the world's lock. What the proxy's thread says comes from a thread of its own.
class Profiling {
 public:
  // Null where NCCL_PROFILER_PLUGIN names none, or nothing that has the interface.
  static std::unique_ptr<Profiling> Load(int interface, uint64_t seed);
  ~Profiling();
  Profiling(const Profiling&) = delete;
  Profiling& operator=(const Profiling&) = delete;

  void* Begin(uint64_t comm, const char* name, int ranks, int rank);
  void End(void* context);

  // In the order in which they come.
  void Asked(void* context, ProfiledLaunch& launch);
  void HostTask(void* context, int rank, ProfiledLaunch& launch);
  void KernelBegan(void* context, const std::shared_ptr<ProfiledLaunch>& launch, int64_t at_ns);
  void KernelEnded(const std::shared_ptr<ProfiledLaunch>& launch, int64_t began_ns, int64_t at_ns);

 private:
  Profiling(void* library, const nccl::PluginV4* v4, const nccl::PluginV5* v5, uint64_t seed);
  template <typename Event>
  void* Start(void* context, Event event);
  void Stop(void* handle);
  void ToProxy(std::function<void()> say);
  void RunProxy();
  void AwaitProxy();

  void* const library_;
  const nccl::PluginV4* const v4_;
  const nccl::PluginV5* const v5_;
  int mask_ = 0;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false, ends_ = false;
  std::thread proxy_;
};

}  // namespace bucketd::agent::sim
