#include "gpu_agent/device/host_threads.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bucketd::agent {
namespace {

// Signals are for the program's own threads, except those that this thread's own code raises and
// a profiler's.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) {
      sigdelset(&all, own);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

absl::Status HostThreads::Add(const std::string& name) {
  const SignalsBlocked blocked;
  const auto worker = std::make_shared<Worker>();
  const std::lock_guard lock(mutex_);  // it begins when its handle is in place
  try {
    worker->thread = std::thread([this, worker] { Work(worker); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread for stream ", name, ": ", error.what()));
  }
  pthread_setname_np(worker->thread.native_handle(), name.substr(0, 15).c_str());
  return absl::OkStatus();
}

void HostThreads::Remove() {
  std::unique_lock lock(mutex_);
  ++leaving_;
  if (const WorkerPtr idle = TakeIdle()) idle->wake.notify_one();
  one_left_.wait(lock, [this] { return !left_.empty(); });
  const WorkerPtr gone = std::move(left_.back());
  left_.pop_back();
  lock.unlock();
  gone->thread.join();
}

void HostThreads::Submit(std::shared_ptr<Task> task) {
  WorkerPtr idle;
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(task));
    idle = TakeIdle();
  }
  if (idle != nullptr) idle->wake.notify_one();
}

HostThreads::WorkerPtr HostThreads::TakeIdle() {
  if (idle_.empty()) return nullptr;
  WorkerPtr idle = std::move(idle_.back());
  idle_.pop_back();
  idle->woken = true;
  return idle;
}

void HostThreads::Work(const WorkerPtr& self) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!ready_.empty()) {
      std::shared_ptr<Task> task = std::move(ready_.front());
      ready_.pop_front();
      lock.unlock();
      while (task != nullptr) task = task->Run();
      lock.lock();
    } else if (leaving_ > 0) {
      --leaving_;
      left_.push_back(self);
      one_left_.notify_one();
      return;
    } else {
      idle_.push_back(self);
      self->wake.wait(lock, [&self] { return self->woken; });
      self->woken = false;
    }
  }
}

}  // namespace bucketd::agent
