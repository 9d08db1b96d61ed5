// A fixed number of threads and a bounded queue: the only place where work happens. What is done
// for somebody waits by share and takes turns, so that nobody's many jobs hold up another's.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "server/base/shares.h"

namespace bucketd {

class WorkerPool {
 public:
  // At most `max_queued` jobs wait beside the `threads` that run, and at most `most_of_one` of the
  // same first share run; 0: no such bound.
  WorkerPool(int threads, int max_queued, int most_of_one = 0);
  ~WorkerPool();  // Stop()s
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Nobody's in particular. False: the queue is full or the pool has stopped, and `job` will not
  // run. Never blocks, never runs the job on the caller's thread.
  bool TrySubmit(std::function<void()> job);
  // `share`: whom it is done for (ShareOf, shares.h), or empty: the first names take turns, and
  // within one its second ones. Jobs of one share begin in the order in which they came. Instead of
  // `job`, where the queue is full or the pool has stopped, `refused`: here, or where
  // another one is handed in later. The newest of whoever has most in the queue gives way.
  void Submit(const Shares::Path& share, std::function<void()> job, std::function<void()> refused);
  // Jobs that run end; jobs that are queued are dropped; threads are joined. Not from a job.
  void Stop();

 private:
  using Id = uint64_t;
  struct Work {
    Shares::Path share = {"", ""};
    std::function<void()> job = nullptr;
    std::function<void()> refused = nullptr;  // null: it does not give way
  };
  struct Line {  // of one first name
    size_t running = 0;
    std::map<std::string, std::set<Id>> waiting;  // by second name
    std::string last;                             // whose turn it was
  };

  // False: it is left as it is. `displaced`: what gave way to it.
  bool Enqueue(Work& work, Work& displaced);
  Work TakeOut(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whose turn it is; 0: nobody's.
  Id Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  const size_t threads_wanted_;
  const size_t max_queued_;
  const size_t most_of_one_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<Id, Work> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Line> lines_ ABSL_GUARDED_BY(mutex_);  // by first name
  std::string last_ ABSL_GUARDED_BY(mutex_);                   // whose turn it was
  Shares shares_ ABSL_GUARDED_BY(mutex_);                      // of what may give way
  Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace bucketd
