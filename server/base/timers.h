// Runs callbacks at points in time, on one thread of its own. Thread-safe. Callbacks must be short:
// they look things up in memory and answer callers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "server/base/clock.h"

namespace bucketd {

class Timers {
 public:
  using Id = uint64_t;  // 0: no timer

  Timers();
  ~Timers();  // Stop()s
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  // After Stop(): returns 0 and never runs `callback`.
  Id Schedule(SteadyTime when, std::function<void()> callback);
  // The callback may still be running when this returns. No-op for 0 and for timers that have run.
  void Cancel(Id id);
  // When this returns the callback neither runs nor will run, unless it is the caller.
  void CancelAndWait(Id id);
  // Drops what is scheduled and waits for a running callback.
  void Stop();

 private:
  using Key = std::pair<SteadyTime, Id>;
  void Run();

  absl::Mutex mutex_;
  // Not absl's: its timed waits follow the wall clock, and a clock that is set would move
  // deadlines.
  std::condition_variable_any changed_;
  std::map<Key, std::function<void()>> due_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Id, SteadyTime> when_ ABSL_GUARDED_BY(mutex_);
  Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  Id running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace bucketd
