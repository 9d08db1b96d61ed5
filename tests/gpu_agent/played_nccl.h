// NCCL's calls of its profiler plugin as a test wants them, on the library that trainers load.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "gpu_agent/profiler/nccl_profiler_abi.h"

namespace bucketd::agent {

// The library, in a build tree beside the tests' folder.
inline std::string ProfilerLibrary() {
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  return (here.parent_path() / "lib" / "libbucketd_nccl_profiler.so").string();
}

struct PlayedComm {
  uint64_t id = 0x0123456789abcdef;
  std::string name = "default_pg";
  int nodes = 2, ranks = 8;
};

struct PlayedColl {
  const char* name = "AllReduce";
  const char* type = "ncclFloat32";
  size_t count = 1000;
  uint64_t sequence = 0;
  uint8_t channels = 2;
};

// One version of the interface; `Plugin` is nccl::PluginV4 or PluginV5.
template <typename Plugin>
class PlayedNccl {
 public:
  static constexpr bool kNewer = std::is_same_v<Plugin, nccl::PluginV5>;
  using Event = std::conditional_t<kNewer, nccl::EventV5, nccl::EventV4>;

  PlayedNccl() : library_(dlopen(ProfilerLibrary().c_str(), RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(library_, nullptr) << dlerror();
    plugin_ = static_cast<const Plugin*>(dlsym(library_, kNewer ? nccl::kEntryV5 : nccl::kEntryV4));
    EXPECT_NE(plugin_, nullptr);
  }
  const Plugin& plugin() const { return *plugin_; }
  void* library() const { return library_; }
  int mask() const { return mask_; }

  void* Init(const PlayedComm& comm = {}, nccl::Logger log = nullptr) {
    void* context = &mask_;  // which it has to replace
    mask_ = -1;
    int result = 0;
    if constexpr (kNewer) {
      result = plugin_->init(&context, comm.id, &mask_, comm.name.c_str(), comm.nodes, comm.ranks,
                             0, log);
    } else {
      result = plugin_->init(&context, &mask_, comm.name.c_str(), comm.id, comm.nodes, comm.ranks,
                             0, log);
    }
    EXPECT_EQ(result, 0);
    return context;
  }

  void* Start(void* context, Event event) const {
    void* handle = &event;  // which it has to replace
    EXPECT_EQ(plugin_->start(context, &handle, &event), 0);
    return handle;
  }
  void* Launch(void* context) const {
    Event event{};
    event.type = nccl::kGroup;
    return Start(context, event);
  }
  // In a launch; the program's call said `called`, where NCCL tells of it.
  void* Coll(void* context, void* launch, const PlayedColl& coll,
             const char* called = nullptr) const {
    nccl::CollV4 of{};
    of.sequence = coll.sequence;
    of.name = coll.name;
    of.count = coll.count;
    of.type = coll.type;
    of.channels = coll.channels;
    Event event{};
    if constexpr (kNewer) {
      if (called != nullptr) {
        event.type = nccl::kCollApi;
        event.call = {coll.name, coll.count, called, 0, nullptr, false};
        event.parent = Start(context, std::exchange(event, {}));
      }
      event.coll = {of, launch};
    } else {
      event.parent = launch;
      event.coll = of;
    }
    event.type = nccl::kColl;
    void* const handle = Start(context, event);
    EXPECT_EQ(handle == nullptr ? 0 : plugin_->stop(handle), 0);
    return handle;
  }
  void* Begin(void* context, void* coll, uint8_t channel, uint64_t at_ns) const {
    Event event{};
    event.type = nccl::kKernelCh;
    event.parent = coll;
    event.channel = {channel, at_ns};
    return Start(context, event);
  }
  void End(void* channel, uint64_t at_ns) const {
    nccl::StateArgs args{};
    args.stop = at_ns;
    EXPECT_EQ(plugin_->state(channel, nccl::kKernelChStop, &args), 0);
    EXPECT_EQ(plugin_->stop(channel), 0);
  }
  // A launch of one collective, with its kernel from `begin_ns` to `end_ns`.
  void Run(void* context, const PlayedColl& coll, uint64_t begin_ns, uint64_t end_ns,
           const char* called = nullptr) const {
    Kernel(context, Coll(context, Launch(context), coll, called), coll.channels, begin_ns, end_ns);
  }
  void Kernel(void* context, void* coll, uint8_t channels, uint64_t begin_ns,
              uint64_t end_ns) const {
    std::vector<void*> all;
    for (uint8_t c = 0; c < channels; ++c) all.push_back(Begin(context, coll, c, begin_ns + c));
    for (uint8_t c = 0; c < channels; ++c) End(all[c], end_ns - c);
  }

 private:
  void* const library_;
  const Plugin* plugin_ = nullptr;
  int mask_ = 0;
};

}  // namespace bucketd::agent
