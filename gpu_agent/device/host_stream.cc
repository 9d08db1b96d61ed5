#include "gpu_agent/device/host_stream.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace bucketd::agent {
namespace {

// A queue that waits for events.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Its event may have been the one at the front. Returns whether it is to be run now, by the
  // caller.
  virtual bool BecomeReady() = 0;
};
using WaiterPtr = std::shared_ptr<Waiter>;

class HostEvent final : public Event {
 public:
  bool done() const override { return done_.load(std::memory_order_acquire); }

  absl::Status Wait(absl::Time deadline) const override {
    if (done()) return status_;
    std::unique_lock lock(mutex_);
    const auto is_done = [this] { return done(); };
    if (deadline == absl::InfiniteFuture()) {
      reached_.wait(lock, is_done);
    } else if (!reached_.wait_until(lock, absl::ToChronoTime(deadline), is_done)) {
      return absl::DeadlineExceededError("the stream did not reach the event in time");
    }
    return status_;
  }

  absl::StatusOr<int64_t> Since(const Event& earlier) const override {
    const auto* other = dynamic_cast<const HostEvent*>(&earlier);
    if (other == nullptr) return absl::FailedPreconditionError("the events are of two devices");
    if (!done() || !other->done()) {
      return absl::FailedPreconditionError("the events are not both done");
    }
    return picoseconds_ - other->picoseconds_;
  }

  // REQUIRES: done().
  const absl::Status& status() const { return status_; }

  // Returns the queues that wait for it.
  std::vector<WaiterPtr> Reach(const absl::Status& status) {
    std::vector<WaiterPtr> waiters;
    {
      const std::lock_guard lock(mutex_);
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      picoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() * 1000;
      status_ = status;
      done_.store(true, std::memory_order_release);
      waiters.swap(waiters_);
    }
    reached_.notify_all();
    return waiters;
  }

  // Reach returns it; never if it is done.
  void Tell(WaiterPtr waiter) {
    const std::lock_guard lock(mutex_);
    if (!done()) waiters_.push_back(std::move(waiter));
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  std::atomic<bool> done_ = false;  // what follows is written before, and never again
  absl::Status status_;
  int64_t picoseconds_ = 0;
  std::vector<WaiterPtr> waiters_;
};

}  // namespace

// Idle, or `active_`: somebody runs it or is about to.
class HostStream::Queue final : public HostThreads::Task,
                                public Waiter,
                                public std::enable_shared_from_this<Queue> {
 public:
  // Exactly one of work, reach and wait.
  struct Item {
    std::function<absl::Status()> work;
    bool brief = false;
    std::shared_ptr<HostEvent> reach;
    std::shared_ptr<HostEvent> wait;
    bool is_long() const { return work != nullptr && !brief; }
  };
  using List = std::vector<std::shared_ptr<Queue>>;

  explicit Queue(std::shared_ptr<HostThreads> threads) : threads_(std::move(threads)) {}

  HostThreads& threads() { return *threads_; }

  void Push(Item item) {
    {
      const std::lock_guard lock(mutex_);
      if (item.work != nullptr) last_is_brief_ = item.brief;
      long_ += item.is_long();
      items_.push_back(std::move(item));
      if (!Activate()) return;
    }
    Settle({shared_from_this()});
  }

  void Hold() {
    const std::lock_guard lock(mutex_);
    ++held_;
  }

  void Release() {
    {
      const std::lock_guard lock(mutex_);
      --held_;
      if (!Activate()) return;
    }
    Settle({shared_from_this()});
  }

  // Returns when nothing of it runs or ever will.
  void Stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    held_ = 0;
    if (Activate()) threads_->Submit(shared_from_this());
    idle_.wait(lock, [this] { return !active_; });
  }

  bool BecomeReady() override {
    const std::lock_guard lock(mutex_);
    return Activate();
  }

  std::shared_ptr<Task> Run() override {
    List ready;
    Drain(true, ready);
    return Settle(std::move(ready), threads_.get());
  }

 private:
  // REQUIRES: mutex_ is held.
  bool IsReady() const {
    if (items_.empty()) return false;
    const Item& front = items_.front();
    return stopping_ || !status_.ok() || front.wait == nullptr || front.wait->done();
  }

  // Whether whoever has made it ready shall run it, rather than wake a thread. Points alone are
  // left to a thread, so that what begins there is not timed from before the thread woke.
  // REQUIRES: mutex_ is held.
  bool IsBrief() const { return long_ == 0 && last_is_brief_; }

  // True: the caller sees to it that it is run. REQUIRES: mutex_ is held.
  bool Activate() {
    if (active_ || held_ > 0 || !IsReady()) return false;
    active_ = true;
    return true;
  }

  // Runs what is ready, and adds to `ready` whom that makes ready. Without `all` it leaves what is
  // not brief, and returns false.
  bool Drain(bool all, List& ready) {
    std::unique_lock lock(mutex_);
    while (IsReady()) {
      if (!all && !IsBrief()) return false;
      if (stopping_ && status_.ok()) status_ = absl::CancelledError("the stream was destroyed");
      Item item = std::move(items_.front());
      items_.pop_front();
      long_ -= item.is_long();
      lock.unlock();
      Perform(std::exchange(item, {}), ready);
      lock.lock();
    }
    active_ = false;
    if (stopping_) idle_.notify_all();
    return true;
  }

  void Perform(const Item item, List& ready) {
    if (item.reach != nullptr) {
      for (const WaiterPtr& waiter : item.reach->Reach(status_)) {
        if (waiter->BecomeReady()) ready.push_back(std::static_pointer_cast<Queue>(waiter));
      }
      return;
    }
    if (!status_.ok()) return;
    if (item.is_long()) Settle(std::exchange(ready, {}));  // the others shall not wait for it
    status_ = item.wait != nullptr ? item.wait->status() : item.work();
  }

  // Sees to it that active queues are run: the brief ones here, one of the others by the caller if
  // that is one of `threads` (another device counts on its own), the rest by threads.
  static std::shared_ptr<Task> Settle(List ready, const HostThreads* threads = nullptr) {
    std::shared_ptr<Task> next;
    for (size_t i = 0; i < ready.size(); ++i) {
      const std::shared_ptr<Queue> queue = ready[i];
      if (queue->Drain(false, ready)) continue;
      if (next == nullptr && queue->threads_.get() == threads) {
        next = queue;
      } else {
        queue->threads_->Submit(queue);
      }
    }
    return next;
  }

  const std::shared_ptr<HostThreads> threads_;
  std::mutex mutex_;
  std::condition_variable idle_;  // told while it stops
  std::deque<Item> items_;
  int64_t long_ = 0;  // among items_
  bool last_is_brief_ = false;
  bool active_ = false;
  int held_ = 0;
  bool stopping_ = false;
  absl::Status status_;  // of whoever runs it
};

absl::StatusOr<std::unique_ptr<HostStream>> HostStream::Start(
    const std::string& name, std::shared_ptr<HostThreads> threads) {
  const absl::Status added = threads->Add(name);
  if (!added.ok()) return added;
  return std::unique_ptr<HostStream>(new HostStream(std::make_shared<Queue>(std::move(threads))));
}

HostStream::HostStream(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

HostStream::~HostStream() {
  queue_->Stop();
  queue_->threads().Remove();
}

void HostStream::Enqueue(std::function<absl::Status()> work) {
  queue_->Push({.work = std::move(work), .reach = nullptr, .wait = nullptr});
}

void HostStream::EnqueueBrief(std::function<absl::Status()> work) {
  queue_->Push({.work = std::move(work), .brief = true, .reach = nullptr, .wait = nullptr});
}

std::shared_ptr<Event> HostStream::Record() {
  auto event = std::make_shared<HostEvent>();
  queue_->Push({.work = nullptr, .reach = event, .wait = nullptr});
  return event;
}

void HostStream::After(std::shared_ptr<Event> event) {
  auto of_host = std::dynamic_pointer_cast<HostEvent>(std::move(event));
  if (of_host == nullptr) {
    Enqueue([] { return absl::InvalidArgumentError("a host stream waits for host events only"); });
    return;
  }
  if (of_host->done() && of_host->status().ok()) return;
  of_host->Tell(queue_);
  queue_->Push({.work = nullptr, .reach = nullptr, .wait = std::move(of_host)});
}

void HostStream::Hold() { queue_->Hold(); }
void HostStream::Release() { queue_->Release(); }

}  // namespace bucketd::agent
