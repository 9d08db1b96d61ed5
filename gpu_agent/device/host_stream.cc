#include "gpu_agent/device/host_stream.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace bucketd::agent {
namespace {

class HostEvent final : public Event {
 public:
  bool done() const override { return done_.load(std::memory_order_acquire); }

  absl::Status Wait(absl::Time deadline) const override {
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

  void Reach(const absl::Status& status) {
    std::vector<std::function<void()>> hooks;
    {
      std::lock_guard lock(mutex_);
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      picoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() * 1000;
      status_ = status;
      done_.store(true, std::memory_order_release);
      hooks.swap(hooks_);
      reached_.notify_all();
    }
    for (const auto& hook : hooks) hook();
  }

  // `hook` runs once: now if done(), else on the thread that reaches the event.
  void OnReached(std::function<void()> hook) {
    {
      std::lock_guard lock(mutex_);
      if (!done()) {
        hooks_.push_back(std::move(hook));
        return;
      }
    }
    hook();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  std::atomic<bool> done_ = false;  // what follows is written before, and never again
  absl::Status status_;
  int64_t picoseconds_ = 0;
  std::vector<std::function<void()>> hooks_;
};

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

class HostStream::Queue {
 public:
  // Exactly one of the three.
  struct Item {
    std::function<absl::Status()> work;
    std::shared_ptr<HostEvent> reach;
    std::shared_ptr<HostEvent> wait;
  };

  void Push(Item item) {
    std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    wake_.notify_one();
  }

  // The front may be ready now.
  void Wake() {
    std::lock_guard lock(mutex_);
    wake_.notify_one();
  }

  void Stop() {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }

  // The thread's life.
  void Run() {
    absl::Status status;
    while (auto item = Next(status)) Perform(*item, status);
  }

 private:
  // Waits for an item that can be performed; none when the stream ends.
  std::unique_ptr<Item> Next(absl::Status& status) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] {
      if (stopping_) return true;
      if (items_.empty()) return false;
      const Item& front = items_.front();
      return !status.ok() || front.wait == nullptr || front.wait->done();
    });
    if (stopping_ && status.ok()) status = absl::CancelledError("the stream was destroyed");
    if (items_.empty()) return nullptr;
    auto item = std::make_unique<Item>(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  static void Perform(const Item& item, absl::Status& status) {
    if (item.reach != nullptr) {
      item.reach->Reach(status);
    } else if (status.ok()) {
      status = item.wait != nullptr ? item.wait->status() : item.work();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> items_;
  bool stopping_ = false;
};

absl::StatusOr<std::unique_ptr<HostStream>> HostStream::Start(const std::string& name) {
  auto queue = std::make_shared<Queue>();
  auto stream = std::unique_ptr<HostStream>(new HostStream(queue));
  const SignalsBlocked blocked;
  try {
    stream->thread_ = std::thread([queue] { queue->Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread for stream ", name, ": ", error.what()));
  }
  pthread_setname_np(stream->thread_.native_handle(), name.substr(0, 15).c_str());
  return stream;
}

HostStream::HostStream(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

HostStream::~HostStream() {
  queue_->Stop();
  if (thread_.joinable()) thread_.join();
}

void HostStream::Enqueue(std::function<absl::Status()> work) {
  queue_->Push({.work = std::move(work), .reach = nullptr, .wait = nullptr});
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
  queue_->Push({.work = nullptr, .reach = nullptr, .wait = of_host});
  of_host->OnReached([weak = std::weak_ptr<Queue>(queue_)] {
    if (const auto queue = weak.lock()) queue->Wake();
  });
}

}  // namespace bucketd::agent
