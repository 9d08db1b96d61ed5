#include "gpu_agent/library/handle.h"

#include <chrono>
#include <utility>

using bucketd::agent::BucketTimes;
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

void bucket_executor::Ran(int32_t bucket, const BucketTimes& took, int64_t exposed_ns) {
  times[bucket] = took;
  if (reporting != nullptr) reporting->Ran(bucket, took, exposed_ns);
}

void bucket_executor::NoteWhenDone(Joined run) {
  const std::lock_guard lock(mutex);
  if (closing_ || joined_.size() >= kMostNoted) return Lost(1);
  joined_.push_back(std::move(run));
  if (!noting_.joinable()) noting_ = std::thread([this] { Note(); });
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

void bucket_executor::Note() {
  device->OnlyLook();
  std::unique_lock lock(mutex);
  while (!closing_) {
    closed_.wait_for(lock, kLook);
    while (!joined_.empty()) {
      const Joined& run = joined_.front();
      if (!executor->done(run.ticket) || (run.left != nullptr && !run.left->done())) break;
      const auto took = executor->Times(run.ticket);
      if (took.ok() && executor->health().ok()) Ran(run.bucket, *took, Between(run) / 1000);
      joined_.pop_front();
    }
  }
}
