#include "tests/gpu_agent/cudasim/profiling.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

namespace bucketd::agent::sim {
namespace {

constexpr uint64_t kGroupApi = 1 << 8;
constexpr int kGroupStartApiStop = 23, kGroupEndApiStart = 24;

void Quiet(int, unsigned long, const char*, int, const char*, ...) {}

}  // namespace

std::unique_ptr<Profiling> Profiling::Load(int interface, uint64_t seed) {
  const char* named = std::getenv("NCCL_PROFILER_PLUGIN");
  if (named == nullptr || *named == '\0') return nullptr;
  void* const library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto* v5 =
      static_cast<const nccl::PluginV5*>(interface < 5 ? nullptr : dlsym(library, nccl::kEntryV5));
  const auto* v4 =
      static_cast<const nccl::PluginV4*>(v5 != nullptr ? nullptr : dlsym(library, nccl::kEntryV4));
  if (v4 == nullptr && v5 == nullptr) {
    dlclose(library);
    return nullptr;
  }
  return std::unique_ptr<Profiling>(new Profiling(library, v4, v5, seed));
}

Profiling::Profiling(void* library, const nccl::PluginV4* v4, const nccl::PluginV5* v5,
                     uint64_t seed)
    : library_(library), v4_(v4), v5_(v5), random_(seed), proxy_([this] { RunProxy(); }) {}

Profiling::~Profiling() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  proxy_.join();
  dlclose(library_);
}

void* Profiling::Begin(uint64_t comm, const char* name, int ranks, int rank) {
  void* context = nullptr;
  if (v5_ != nullptr) {
    v5_->init(&context, comm, &mask_, name, 1, ranks, rank, Quiet);
  } else {
    v4_->init(&context, &mask_, name, comm, 1, ranks, rank, Quiet);
  }
  return context;
}

// The proxy ends before the plugin hears of it.
void Profiling::End(void* context) {
  AwaitProxy();
  if (v5_ == nullptr) {
    v4_->finalize(context);
  } else if (context != nullptr) {
    v5_->finalize(context);
  }
}

template <typename Event>
void* Profiling::Start(void* context, Event event) {
  void* handle = nullptr;
  if constexpr (std::is_same_v<Event, nccl::EventV5>) {
    v5_->start(context, &handle, &event);
  } else {
    v4_->start(context, &handle, &event);
  }
  return handle;
}

void Profiling::Stop(void* handle) {
  if (handle == nullptr) return;
  v5_ != nullptr ? v5_->stop(handle) : v4_->stop(handle);
}

// The program's thread, in ncclAllGather and its kin.
void Profiling::Asked(void* context, ProfiledLaunch& launch) {
  if (v5_ == nullptr || mask_ == 0) return;
  nccl::EventV5 event{};
  event.type = kGroupApi;
  void* const api = Start(context, event);
  if (api != nullptr) v5_->state(api, kGroupStartApiStop, nullptr);
  for (ProfiledCall& call : launch) {
    event = {};
    event.type = nccl::kCollApi;
    event.parent = api;
    event.call = {call.what.c_str(), call.count, call.type.c_str(), 0, nullptr, false};
    call.call = Start(context, event);
    Stop(call.call);
  }
  if (api != nullptr) v5_->state(api, kGroupEndApiStart, nullptr);
  Stop(api);
}

// As the launch, or each replay of it, is handed to the GPU.
void Profiling::HostTask(void* context, int rank, ProfiledLaunch& launch) {
  if (mask_ == 0) return;
  void* group = nullptr;
  if (v5_ != nullptr) {
    nccl::EventV5 event{};
    event.type = nccl::kGroup;
    group = Start(context, event);
  } else {
    nccl::EventV4 event{};
    event.type = nccl::kGroup;
    group = Start(context, event);
  }
  for (ProfiledCall& call : launch) {
    // An all-gather is bytes by now.
    const bool bytes = call.what == "AllGather";
    call.channels.assign(1 + random_() % 4, nullptr);
    nccl::CollV4 coll{};
    coll.sequence = call.sequence;
    coll.name = call.what.c_str();
    coll.count = bytes ? call.count * call.type_bytes : call.count;
    coll.type = bytes ? "ncclInt8" : call.type.c_str();
    coll.channels = static_cast<uint8_t>(call.channels.size());
    if (v5_ != nullptr) {
      nccl::EventV5 event{};
      event.type = nccl::kColl;
      event.parent = call.call;
      event.rank = rank;
      event.coll = {coll, group};
      call.coll = Start(context, event);
    } else if (group != nullptr) {
      nccl::EventV4 event{};
      event.type = nccl::kColl;
      event.parent = group;
      event.rank = rank;
      event.coll = coll;
      call.coll = Start(context, event);
    }
  }
  for (ProfiledCall& call : launch) Stop(call.coll);
  Stop(group);
}

// One channel begins with the kernel, the others within some hundred nanoseconds.
void Profiling::KernelBegan(void* context, const std::shared_ptr<ProfiledLaunch>& launch,
                            int64_t at_ns) {
  if (mask_ == 0) return;
  for (ProfiledCall& call : *launch) {
    const size_t first = random_() % call.channels.size();
    for (size_t c = 0; c < call.channels.size(); ++c) {
      const auto start = static_cast<uint64_t>(at_ns) + (c == first ? 0 : random_() % 200);
      ToProxy([this, context, launch, &call, c, start] {
        if (v5_ != nullptr) {
          nccl::EventV5 event{};
          event.type = nccl::kKernelCh;
          event.parent = call.coll;
          event.channel = {static_cast<uint8_t>(c), start};
          call.channels[c] = Start(context, event);
        } else {
          nccl::EventV4 event{};
          event.type = nccl::kKernelCh;
          event.parent = call.coll;
          event.channel = {static_cast<uint8_t>(c), start};
          call.channels[c] = Start(context, event);
        }
      });
    }
  }
}

void Profiling::KernelEnded(const std::shared_ptr<ProfiledLaunch>& launch, int64_t began_ns,
                            int64_t at_ns) {
  if (mask_ == 0) return;
  for (ProfiledCall& call : *launch) {
    const size_t last = random_() % call.channels.size();
    for (size_t c = 0; c < call.channels.size(); ++c) {
      const auto room = static_cast<uint64_t>(at_ns - began_ns) / 2;
      const auto stop = static_cast<uint64_t>(at_ns) - (c == last ? 0 : random_() % (room + 1));
      ToProxy([this, launch, &call, c, stop] {
        if (call.channels[c] == nullptr) return;
        nccl::StateArgs args{};
        args.stop = stop;
        (v5_ != nullptr ? v5_->state : v4_->state)(call.channels[c], nccl::kKernelChStop, &args);
        Stop(call.channels[c]);
      });
    }
  }
}

void Profiling::ToProxy(std::function<void()> say) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(say));
  }
  changed_.notify_all();
}

void Profiling::AwaitProxy() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void Profiling::RunProxy() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto say = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    say();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace bucketd::agent::sim
