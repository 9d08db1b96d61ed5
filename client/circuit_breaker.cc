#include "client/circuit_breaker.h"

#include <algorithm>

namespace bucketd::client {

using std::chrono::milliseconds;

CircuitBreaker::Admission CircuitBreaker::Admit(Time now) {
  const std::lock_guard lock(mutex_);
  if (!open_) return Admission::kCall;
  if (probing_ || now < until_) return Admission::kRefused;
  probing_ = true;
  return Admission::kProbe;
}

bool CircuitBreaker::Succeeded() {
  const std::lock_guard lock(mutex_);
  const bool was_open = open_;
  failed_.clear();
  open_ = probing_ = false;
  return was_open;
}

bool CircuitBreaker::Failed(Time now) {
  const std::lock_guard lock(mutex_);
  // A call that went out before the breaker opened says nothing new.
  if (open_ && !probing_) return false;
  failed_.push_back(now);
  while (now - failed_.front() > options_.window) failed_.pop_front();
  if (!probing_ && static_cast<int>(failed_.size()) < options_.failures) return false;
  const auto most = options_.cooldown + options_.cooldown / 2;
  until_ = now + milliseconds(absl::Uniform(absl::IntervalClosed, random_,
                                            options_.cooldown.count(), most.count()));
  open_ = true;
  probing_ = false;
  failed_.clear();
  return true;
}

milliseconds CircuitBreaker::Remaining(Time now) const {
  const std::lock_guard lock(mutex_);
  if (!open_ || probing_) return milliseconds(0);
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(until_ - now));
}

}  // namespace bucketd::client
