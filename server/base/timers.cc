#include "server/base/timers.h"

namespace bucketd {

Timers::Timers() : thread_([this] { Run(); }) {}

Timers::~Timers() { Stop(); }

Timers::Id Timers::Schedule(SteadyTime when, std::function<void()> callback) {
  std::unique_lock lock(mutex_);
  if (stopped_) return 0;
  const Id id = ++last_id_;
  when_.emplace(id, when);
  const auto at = due_.emplace(Key(when, id), std::move(callback)).first;
  const bool is_first = at == due_.begin();
  lock.unlock();
  if (is_first) changed_.notify_all();
  return id;
}

void Timers::Cancel(Id id) {
  const std::lock_guard lock(mutex_);
  const auto found = when_.find(id);
  if (found == when_.end()) return;
  due_.erase(Key(found->second, id));
  when_.erase(found);
}

void Timers::CancelAndWait(Id id) {
  if (id == 0) return;
  Cancel(id);
  if (std::this_thread::get_id() == thread_.get_id()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ != id; });
}

void Timers::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    due_.clear();
    when_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Timers::Run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (due_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto next = due_.begin();
    const Key key = next->first;
    if (std::chrono::steady_clock::now() < key.first) {
      changed_.wait_until(lock, key.first);
      continue;
    }
    std::function<void()> callback = std::move(next->second);
    due_.erase(next);
    when_.erase(key.second);
    running_ = key.second;
    lock.unlock();
    callback();
    callback = nullptr;  // what it captured dies before CancelAndWait returns
    lock.lock();
    running_ = 0;
    changed_.notify_all();
  }
}

}  // namespace bucketd
