// NCCL's interface for profiler plugins, versions 4 and 5, as far as the plugin uses it. Names are
// ours, places and numbers NCCL's: src/include/plugin/profiler/profiler_v4.h and profiler_v5.h,
// and enums of src/include/plugin/nccl_profiler.h, the same in NCCL 2.27.7 (which looks for version
// 4), 2.28.9 (5) and 2.30.7 (6, then 5, then 4). Offsets below are those that a compiler gives to
// these files, and that the debug information of NCCL 2.32.3 has (which begins at 7).
#pragma once

#include <cstddef>
#include <cstdint>

namespace bucketd::agent::nccl {

// ncclResult_t. What an event's call returns, NCCL ignores.
inline constexpr int kSuccess = 0;

// Event types, as bits.
inline constexpr uint64_t kGroup = 1 << 0;     // all that one kernel's launch carries out
inline constexpr uint64_t kColl = 1 << 1;      // a collective of it
inline constexpr uint64_t kKernelCh = 1 << 6;  // one of its channels in the kernel
inline constexpr uint64_t kCollApi = 1 << 9;   // the program's call (5 and later)
inline constexpr int kKernelChStop = 22;       // the event state that has a channel's end
inline constexpr int kLogInfo = 3, kLogWarn = 2;
inline constexpr unsigned long kLogInit = 1;

// Enabled through `log` where NCCL_DEBUG says so.
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

struct CollV4 {
  uint64_t sequence;  // of the communicator's collectives of this name
  const char* name;   // "AllGather", ...
  const void* in;
  void* out;
  size_t count;  // a rank's, in elements; of an all-gather in bytes, with the type of a byte
  int root;
  const char* type;  // "ncclBfloat16", ...
  uint8_t channels;  // that carry it out
  uint8_t warps;
  const char *algorithm, *protocol;
};
struct CollV5 {
  CollV4 v4;
  void* group;  // handle of its kernel's launch
};
// The kernel's clock is the GPU's globaltimer, in nanoseconds.
struct KernelCh {
  uint8_t channel;
  uint64_t start;
};
struct CollApi {
  const char* name;
  size_t count;
  const char* type;
  int root;
  void* stream;
  bool captured;
};

struct EventV4 {
  uint8_t type;
  void* parent;  // handle: of a channel its collective, of a collective its group
  int rank;
  union {
    CollV4 coll;
    KernelCh channel;
  };
};
struct EventV5 {
  uint64_t type;
  void* parent;  // handle: of a channel its collective, of a collective the call
  int rank;
  union {
    CollV5 coll;
    KernelCh channel;
    CollApi call;
  };
};
static_assert(offsetof(EventV4, parent) == 8 && offsetof(EventV4, rank) == 16);
static_assert(offsetof(EventV5, parent) == 8 && offsetof(EventV5, rank) == 16);
static_assert(offsetof(EventV4, coll) == 24 && offsetof(EventV5, coll) == 24);
static_assert(offsetof(CollV4, name) == 8 && offsetof(CollV4, count) == 32);
static_assert(offsetof(CollV4, type) == 48 && offsetof(CollV4, channels) == 56);
static_assert(sizeof(CollV4) == 80 && sizeof(CollV5) == 88 && sizeof(EventV4) == 104);
static_assert(offsetof(KernelCh, start) == 8 && offsetof(CollApi, type) == 16);
static_assert(sizeof(EventV5) == 112);

union StateArgs {
  size_t transferred;
  uint64_t stop;  // of a channel
};
static_assert(sizeof(StateArgs) == 8);

// init: `mask` gets the types of events that are wanted, of the whole process. A context that is
// null is never finalized from 2.28 on.
struct PluginV4 {
  const char* name;
  int (*init)(void** context, int* mask, const char* comm_name, uint64_t comm, int nodes, int ranks,
              int rank, Logger log);
  int (*start)(void* context, void** handle, EventV4* event);
  int (*stop)(void* handle);
  int (*state)(void* handle, int state, StateArgs* args);
  int (*finalize)(void* context);
};
struct PluginV5 {
  const char* name;
  int (*init)(void** context, uint64_t comm, int* mask, const char* comm_name, int nodes, int ranks,
              int rank, Logger log);
  int (*start)(void* context, void** handle, EventV5* event);
  int (*stop)(void* handle);
  int (*state)(void* handle, int state, StateArgs* args);
  int (*finalize)(void* context);
};
static_assert(sizeof(PluginV4) == 48 && sizeof(PluginV5) == 48);

inline constexpr char kEntryV4[] = "ncclProfiler_v4", kEntryV5[] = "ncclProfiler_v5";

}  // namespace bucketd::agent::nccl
