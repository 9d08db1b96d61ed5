#include "gpu_agent/library/handle.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "gpu_agent/device/thread.h"

using bucketd::agent::Joined;

namespace {

constexpr size_t kMostNoted = 16384;
constexpr std::chrono::milliseconds kLook{20};

// Picoseconds that a stream stood; 0 where that is not known.
int64_t Between(const Joined& run) {
  if (run.reached == nullptr || run.left == nullptr) return 0;
  const auto stood = run.left->Since(*run.reached);
  return stood.ok() ? *stood : 0;
}

}  // namespace

absl::Status bucketd::agent::Maker::Check() const {
  if (here()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this executor was opened before a fork: the child needs one of its own");
}

bucket_executor::~bucket_executor() { StopNoting(); }

void bucket_executor::NoteWhenDone(Joined run) {
  const std::lock_guard lock(mutex);
  if (closing_ || joined_.size() + looked_at_ >= kMostNoted) return Skip(run);
  if (!noting_.joinable()) {
    auto started = bucketd::agent::StartThread("noting", [this](const auto&) { Note(); });
    if (!started.ok()) return Skip(run);  // a trainer goes on without records
    noting_ = *std::move(started);
  }
  joined_.push_back(std::move(run));
}

void bucket_executor::StopNoting() {
  {
    const std::lock_guard lock(mutex);
    if (std::exchange(closing_, true)) return;
  }
  closed_.notify_all();
  if (noting_.joinable()) noting_.join();
  Lost(joined_.size());
}

// After an error they come to no end of which there would be records.
void bucket_executor::Lost(size_t count) {
  if (count > 0 && reporting != nullptr && executor->health().ok()) reporting->Lost(count);
}

void bucket_executor::Skip(const Joined& run) {
  if (reporting != nullptr && executor->health().ok()) reporting->Skip(run.bucket);
}

// Whoever starts or joins a bucket wants the lock: CUDA is asked without it.
void bucket_executor::Note() {
  device->OnlyLook();
  std::deque<Joined> mine;
  std::unique_lock lock(mutex);
  while (!closing_) {
    closed_.wait_for(lock, kLook);
    std::move(joined_.begin(), joined_.end(), std::back_inserter(mine));
    joined_.clear();
    looked_at_ = mine.size();
    lock.unlock();
    while (!mine.empty() && NoteIfDone(mine.front())) mine.pop_front();
    lock.lock();
    looked_at_ = mine.size();
  }
  Lost(mine.size());
}

bool bucket_executor::NoteIfDone(const Joined& run) {
  if (!executor->done(run.ticket) || (run.left != nullptr && !run.left->done())) return false;
  if (reporting == nullptr) return true;
  const auto took = executor->Times(run.ticket);
  const int64_t exposed_ns = Between(run) / 1000;
  if (!took.ok() || !executor->health().ok()) return true;
  const std::lock_guard lock(mutex);
  reporting->Ran(run.bucket, *took, exposed_ns);
  return true;
}
