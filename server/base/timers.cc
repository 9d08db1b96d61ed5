#include "server/base/timers.h"

#include <chrono>

#include "absl/time/time.h"

namespace bucketd {

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
  if (is_first) changed_.SignalAll();
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
  while (running_ == id) changed_.Wait(&mutex_);
}

void Timers::Stop() {
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
    due_.clear();
    when_.clear();
  }
  changed_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

void Timers::Run() {
  mutex_.Lock();
  while (!stopped_) {
    if (due_.empty()) {
      changed_.Wait(&mutex_);
      continue;
    }
    const auto next = due_.begin();
    const Key key = next->first;
    const SteadyTime::duration ahead = key.first - std::chrono::steady_clock::now();
    if (ahead > SteadyTime::duration::zero()) {
      changed_.WaitWithTimeout(&mutex_, absl::FromChrono(ahead));
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
    changed_.SignalAll();
  }
  mutex_.Unlock();
}

}  // namespace bucketd
