// The threads that compute plans, and what waits for them. Fair by cost and weight: next is whoever
// has used least, first among those that share the slots, then among those of one of them. What is
// expensive never takes the last slot. Full, the newest work of whoever has most of it gives way.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "server/base/shares.h"

namespace bucketd {

// Whose work it is (ShareOf, shares.h): the first name shares the slots, the second what falls to
// that one.
struct WorkShare {
  Shares::Path names;
  int64_t outer_weight = 1, inner_weight = 1;  // of the slots, beside the others'
};

class ComputeQueue {
 public:
  using Id = uint64_t;  // the caller's choice; never 0, and larger for what came later
  // Ends early where `cancelled` turns true.
  using Job = std::function<void(const std::atomic<bool>& cancelled)>;
  struct Work {
    Id id = 0;
    WorkShare share;
    int64_t cost_ms = 0;  // estimated
    Job job;
  };

  // At most `max_queued` wait beside the `slots` that run.
  ComputeQueue(int slots, int max_queued);
  ~ComputeQueue();  // Stop()s
  ComputeQueue(const ComputeQueue&) = delete;
  ComputeQueue& operator=(const ComputeQueue&) = delete;

  struct Taken {
    bool taken = false;  // else it will not run
    Id displaced = 0;    // what gave way and will not run
  };
  Taken Submit(Work work);
  // True: it was waiting and will not run.
  bool Drop(Id id);
  // Work that runs and that nobody wants goes on as long as nothing waits for its slot.
  void SetWanted(Id id, bool wanted);
  // Cancels what runs, drops what waits, joins the threads. Not from a job.
  void Stop();

  static constexpr int64_t kExpensiveMs = 5'000;

 private:
  struct Running {
    std::atomic<bool> cancelled{false};
    bool wanted = true;
  };
  struct Use {
    int64_t present = 0;  // waiting and running
    int64_t used = 0;     // by weight
  };
  template <typename Key>
  using Uses = std::map<Key, Use>;
  using Queue = std::map<Id, Work>;

  void Run();
  void Enter(const Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(const Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Work TakeOut(Queue::iterator at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Queue::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelUnwanted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t slots_;
  const size_t max_queued_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  Queue queue_ ABSL_GUARDED_BY(mutex_);
  Shares shares_ ABSL_GUARDED_BY(mutex_);            // of queue_
  Uses<std::string> outer_ ABSL_GUARDED_BY(mutex_);  // by first name
  Uses<Shares::Path> inner_ ABSL_GUARDED_BY(mutex_);
  std::map<Id, std::unique_ptr<Running>> running_ ABSL_GUARDED_BY(mutex_);
  size_t expensive_running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace bucketd
