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
    const absl::MutexLock lock(&mutex_);
    // Jobs that an idle thread is about to take do not count as waiting.
    if (stopped_ || running_ + queue_.size() >= threads_wanted_ + max_queued_) return false;
    queue_.push_back(std::move(job));
  }
  changed_.Signal();
  return true;
}

void WorkerPool::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
    dropped.swap(queue_);
  }
  changed_.SignalAll();
  threads_.clear();  // joins
}

void WorkerPool::Run() {
  mutex_.Lock();
  while (true) {
    while (!stopped_ && queue_.empty()) changed_.Wait(&mutex_);
    if (stopped_) break;
    std::function<void()> job = std::move(queue_.front());
    queue_.pop_front();
    ++running_;
    mutex_.Unlock();
    job();
    job = nullptr;
    mutex_.Lock();
    --running_;
  }
  mutex_.Unlock();
}

}  // namespace bucketd
