#include "gpu_agent/device/host_stream.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "gpu_agent/device/steady.h"
#include "gpu_agent/device/thread.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

class HostEvent final : public Event {
 public:
  bool done() const override { return done_.load(std::memory_order_acquire); }

  absl::Status Wait(absl::Time deadline) const override {
    if (done()) return status_;
    std::unique_lock lock(mutex_);
    const auto is_done = [this] { return done(); };
    if (deadline == absl::InfiniteFuture()) {
      reached_.wait(lock, is_done);
    } else if (!reached_.wait_until(lock, SteadyAt(deadline), is_done)) {
      return absl::DeadlineExceededError("the stream did not reach the event in time");
    }
    return status_;
  }

  // CANCELLED where the stop comes first.
  absl::Status Wait(const std::stop_token& stop) const {
    std::unique_lock lock(mutex_);
    if (reached_.wait(lock, stop, [this] { return done(); })) return status_;
    return absl::CancelledError("the stream was destroyed");
  }

  absl::StatusOr<int64_t> Since(const Event& earlier) const override {
    const auto* other = dynamic_cast<const HostEvent*>(&earlier);
    if (other == nullptr) return absl::FailedPreconditionError("the events are of two devices");
    if (!done() || !other->done()) {
      return absl::FailedPreconditionError("the events are not both done");
    }
    return picoseconds_ - other->picoseconds_;
  }

  void Reach(const absl::Status& status) {
    {
      const std::lock_guard lock(mutex_);
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      picoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() * 1000;
      status_ = status;
      done_.store(true, std::memory_order_release);
    }
    reached_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable_any reached_;
  std::atomic<bool> done_ = false;  // what follows is written before, and never again
  absl::Status status_;
  int64_t picoseconds_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostStream>> HostStream::Start(const std::string& name) {
  std::unique_ptr<HostStream> stream(new HostStream);
  ASSIGN_OR_RETURN(
      stream->thread_,
      StartThread(name, [self = stream.get()](const std::stop_token& stop) { self->Work(stop); }));
  return stream;
}

void HostStream::Push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  }
  pushed_.notify_one();
}

void HostStream::Work(const std::stop_token& stop) {
  absl::Status status;
  std::unique_lock lock(mutex_);
  while (pushed_.wait(lock, stop, [this] { return !items_.empty(); })) {
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    if (stop.stop_requested() && status.ok()) {
      status = absl::CancelledError("the stream was destroyed");
    }
    item(status, stop);
    item = nullptr;  // what it holds goes without the lock
    lock.lock();
  }
}

void HostStream::Enqueue(std::function<absl::Status()> work) {
  Push([work = std::move(work)](absl::Status& status, const std::stop_token&) {
    if (status.ok()) status = work();
  });
}

std::shared_ptr<Event> HostStream::Record() {
  auto event = std::make_shared<HostEvent>();
  Push([event](absl::Status& status, const std::stop_token&) { event->Reach(status); });
  return event;
}

void HostStream::After(std::shared_ptr<Event> event) {
  const auto of_host = std::dynamic_pointer_cast<HostEvent>(std::move(event));
  Push([of_host](absl::Status& status, const std::stop_token& stop) {
    if (!status.ok()) return;
    status = of_host != nullptr
                 ? of_host->Wait(stop)
                 : absl::InvalidArgumentError("a host stream waits for host events only");
  });
}

}  // namespace bucketd::agent
