#include "server/base/worker_pool.h"

#include <utility>

namespace bucketd {

WorkerPool::WorkerPool(int threads, int max_queued)
    : threads_wanted_(static_cast<size_t>(threads)), max_queued_(static_cast<size_t>(max_queued)) {
  threads_.reserve(threads_wanted_);
  for (size_t i = 0; i < threads_wanted_; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() { Stop(); }

bool WorkerPool::TrySubmit(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    // Jobs that an idle thread is about to take do not count as waiting.
    if (stopped_ || running_ + queue_.size() >= threads_wanted_ + max_queued_) return false;
    queue_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void WorkerPool::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(queue_);
  }
  changed_.notify_all();
  threads_.clear();  // joins
}

void WorkerPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
    if (stopped_) return;
    std::function<void()> job = std::move(queue_.front());
    queue_.pop_front();
    ++running_;
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
    --running_;
  }
}

}  // namespace bucketd
