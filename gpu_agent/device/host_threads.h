// The threads of a host device's streams: as many as there are streams, so that work that blocks on
// one keeps none of the others from running. A thread is nobody's: whoever makes a stream ready
// goes on with it where it has nothing else to do, since waking a thread costs more than a small
// bucket.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace bucketd::agent {

// Thread-safe.
class HostThreads {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    // On one of the threads, which goes on with what it returns, if anything.
    virtual std::shared_ptr<Task> Run() = 0;
  };

  // REQUIRES: every Add that was OK had its Remove.
  ~HostThreads() = default;

  // One thread more; RESOURCE_EXHAUSTED if there is none to be had. It takes no signals of the
  // program. `name` is what thread lists call it, cut to 15 characters.
  absl::Status Add(const std::string& name);
  // One less. REQUIRES: at most as many tasks as threads remain run or wait to be run.
  void Remove();
  // Never blocks. No more tasks at once than there are threads, so each finds one.
  void Submit(std::shared_ptr<Task> task);

 private:
  struct Worker {
    std::condition_variable wake;
    bool woken = false;
    std::thread thread;
  };
  using WorkerPtr = std::shared_ptr<Worker>;

  void Work(const WorkerPtr& self);
  // An idle thread that is to look around; notify it without the lock.
  WorkerPtr TakeIdle();

  std::mutex mutex_;
  std::deque<std::shared_ptr<Task>> ready_;
  std::vector<WorkerPtr> idle_;  // the last one to fall asleep is woken first
  int leaving_ = 0;              // threads that are to end
  std::vector<WorkerPtr> left_;  // and did
  std::condition_variable one_left_;
};

}  // namespace bucketd::agent
