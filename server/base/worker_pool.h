// A fixed number of threads and a bounded queue: the only place where work happens. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace bucketd {

class WorkerPool {
 public:
  // At most `max_queued` jobs wait beside the `threads` that run.
  WorkerPool(int threads, int max_queued);
  ~WorkerPool();  // Stop()s
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False: the queue is full or the pool has stopped, and `job` will not run. Never blocks, never
  // runs the job on the caller's thread.
  bool TrySubmit(std::function<void()> job);
  // Jobs that run end; jobs that are queued are dropped; threads are joined. Not from a job.
  void Stop();

 private:
  void Run();

  const size_t threads_wanted_;
  const size_t max_queued_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace bucketd
