// libbucketd_nccl_profiler.so as NCCL sees it: two tables, one for NCCL 2.27, one for 2.28 and
// newer. Every call succeeds, whatever it gets: NCCL 2.27 drops a plugin that fails, with a
// warning, and 2.30 closes it at once and once more as the communicator ends. Without anybody to
// tell, it asks for no events.
//
// It stays in the process when NCCL unloads it (-z nodelete), and so does what it knows: the
// proxy's thread may still be on its way out, and the next communicator goes on with the same ring.
// A child of a fork has no part in it.
#include <pthread.h>

#include <atomic>
#include <cinttypes>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/profiler/profiler.h"

namespace bucketd::agent {
namespace {

std::atomic<Profiler*> profiler = nullptr;  // for good; null: no events
std::atomic<bool> forked = false;

[[gnu::constructor]] void WatchForks() {
  pthread_atfork(nullptr, nullptr, [] {
    profiler = nullptr;
    forked = true;
  });
}

void* Pointer(uint64_t number) { return reinterpret_cast<void*>(number); }
uint64_t Number(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

absl::StatusOr<std::unique_ptr<Profiler>> Make(std::string& told) {
  const auto settings = Profiler::FromEnvironment();
  if (!settings.ok()) return settings.status();
  told = settings->agent;
  return Profiler::Create(*settings);
}

// The first communicator decides.
void Start(nccl::Logger log) {
  std::string told;
  auto made = Make(told);
  const auto say = [log](int level, const char* what, const std::string& whom) {
    if (log == nullptr) return;
    log(level, nccl::kLogInit, __FILE__, __LINE__, "PROFILER/bucketd: %s%s", what, whom.c_str());
  };
  if (made.ok()) {
    profiler = made->release();
    return say(nccl::kLogInfo, "collectives are told to the agent at ", told);
  }
  const bool meant = !absl::IsFailedPrecondition(made.status());
  say(meant ? nccl::kLogWarn : nccl::kLogInfo, "off: ", std::string(made.status().message()));
}

int Init(void** context, int* mask, uint64_t id, const char* name, int nodes, int ranks,
         nccl::Logger log) {
  if (context == nullptr || mask == nullptr) return nccl::kSuccess;
  uint64_t communicator = 0;
  try {
    static std::once_flag once;
    if (!forked) std::call_once(once, [log] { Start(log); });
    Profiler* const all = profiler;
    if (all != nullptr) {
      communicator = all->Begin({id, name == nullptr ? "" : name, nodes, ranks});
    }
  } catch (...) {  // no memory: a trainer goes on without
  }
  *context = Pointer(communicator);
  // All communicators' one, which their threads may read meanwhile: written once.
  *mask = profiler == nullptr ? 0 : static_cast<int>(nccl::kColl | nccl::kKernelCh);
  return nccl::kSuccess;
}

int Finalize(void* context) {
  Profiler* const all = profiler;
  if (all != nullptr) all->End(Number(context));
  return nccl::kSuccess;
}

const nccl::CollV4& CollOf(const nccl::EventV4& event) { return event.coll; }
const nccl::CollV4& CollOf(const nccl::EventV5& event) { return event.coll.v4; }
uint64_t LaunchOf(const nccl::EventV4& event) { return Number(event.parent); }
uint64_t LaunchOf(const nccl::EventV5& event) { return Number(event.coll.group); }
uint64_t CalledAs(const Profiler& /*all*/, const nccl::EventV4& /*event*/) { return 0; }
uint64_t CalledAs(const Profiler& all, const nccl::EventV5& event) {
  return all.Called(event.call);
}

template <typename Event>
int StartEvent(void* context, void** handle, Event* event) {
  if (handle == nullptr) return nccl::kSuccess;
  *handle = nullptr;
  Profiler* const all = profiler;
  if (all == nullptr || event == nullptr) return nccl::kSuccess;
  const uint64_t parent = Number(event->parent);
  switch (uint64_t{event->type}) {
    case nccl::kCollApi:
      *handle = Pointer(CalledAs(*all, *event));
      break;
    case nccl::kGroup:
      *handle = Pointer(all->Launch());
      break;
    case nccl::kColl:
      *handle = Pointer(all->Launched(Number(context), parent, LaunchOf(*event), CollOf(*event)));
      break;
    case nccl::kKernelCh:
      *handle = Pointer(all->ChannelBegan(parent, event->channel));
      break;
    default:
      break;
  }
  return nccl::kSuccess;
}

// A channel's end comes as its state; a collective's call is over long before its kernel is.
int StopEvent(void* /*handle*/) { return nccl::kSuccess; }

int RecordState(void* handle, int state, nccl::StateArgs* args) {
  Profiler* const all = profiler;
  if (all != nullptr && state == nccl::kKernelChStop && args != nullptr) {
    all->ChannelEnded(Number(handle), args->stop);
  }
  return nccl::kSuccess;
}

constexpr char kName[] = "bucketd";

}  // namespace
}  // namespace bucketd::agent

#define BUCKETD_PLUGIN __attribute__((visibility("default")))

extern "C" {

BUCKETD_PLUGIN bucketd::agent::nccl::PluginV4 ncclProfiler_v4 = {
    bucketd::agent::kName,
    [](void** context, int* mask, const char* name, uint64_t id, int nodes, int ranks, int,
       bucketd::agent::nccl::Logger log) {
      return bucketd::agent::Init(context, mask, id, name, nodes, ranks, log);
    },
    bucketd::agent::StartEvent<bucketd::agent::nccl::EventV4>,
    bucketd::agent::StopEvent,
    bucketd::agent::RecordState,
    bucketd::agent::Finalize,
};

BUCKETD_PLUGIN bucketd::agent::nccl::PluginV5 ncclProfiler_v5 = {
    bucketd::agent::kName,
    [](void** context, uint64_t id, int* mask, const char* name, int nodes, int ranks, int,
       bucketd::agent::nccl::Logger log) {
      return bucketd::agent::Init(context, mask, id, name, nodes, ranks, log);
    },
    bucketd::agent::StartEvent<bucketd::agent::nccl::EventV5>,
    bucketd::agent::StopEvent,
    bucketd::agent::RecordState,
    bucketd::agent::Finalize,
};

}  // extern "C"
