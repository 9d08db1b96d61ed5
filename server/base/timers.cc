#include "server/base/timers.h"

#include <chrono>

namespace bucketd {
namespace {

// absl's lock as the standard library's condition takes it. The condition lets go of it and takes
// it again, so whoever waits holds it before and after, which the compiler cannot see.
struct Lockable {
  absl::Mutex& mutex;
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
};

}  // namespace

Timers::Timers() : thread_([this] { Run(); }) {}

Timers::~Timers() { Stop(); }

Timers::Id Timers::Schedule(SteadyTime when, std::function<void()> callback) {
  Id id = 0;
  bool is_first = false;
  {
    const absl::MutexLock lock(&mutex_);
    if (stopped_) return 0;
    id = ++last_id_;
    when_.emplace(id, when);
    const auto at = due_.emplace(Key(when, id), std::move(callback)).first;
    is_first = at == due_.begin();
  }
  if (is_first) changed_.notify_all();
  return id;
}

void Timers::Cancel(Id id) {
  const absl::MutexLock lock(&mutex_);
  const auto found = when_.find(id);
  if (found == when_.end()) return;
  due_.erase(Key(found->second, id));
  when_.erase(found);
}

void Timers::CancelAndWait(Id id) {
  if (id == 0) return;
  Cancel(id);
  if (std::this_thread::get_id() == thread_.get_id()) return;
  const absl::MutexLock lock(&mutex_);
  Lockable lockable{mutex_};
  while (running_ == id) changed_.wait(lockable);
}

void Timers::Stop() {
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
    due_.clear();
    when_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Timers::Run() {
  mutex_.Lock();
  Lockable lockable{mutex_};
  while (!stopped_) {
    if (due_.empty()) {
      changed_.wait(lockable);
      continue;
    }
    const auto next = due_.begin();
    const Key key = next->first;
    if (std::chrono::steady_clock::now() < key.first) {
      changed_.wait_until(lockable, key.first);
      continue;
    }
    std::function<void()> callback = std::move(next->second);
    due_.erase(next);
    when_.erase(key.second);
    running_ = key.second;
    mutex_.Unlock();
    callback();
    callback = nullptr;  // what it captured dies before CancelAndWait returns
    mutex_.Lock();
    running_ = 0;
    changed_.notify_all();
  }
  mutex_.Unlock();
}

}  // namespace bucketd
