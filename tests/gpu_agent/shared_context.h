// Ranks of a test that are threads on one GPU.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "gtest/gtest.h"

namespace bucketd::agent {

// They have one context, in which memory that is taken or given back may wait for whatever runs,
// and so for a collective whose last rank has not launched it, if that is the rank that waits. To
// meet before and behind the launches of a step keeps the two apart.
class SharedContext {
 public:
  explicit SharedContext(int ranks) : ranks_(ranks) {}

  // Until all ranks are here. Fails the test, once, where one does not come: then nobody waits.
  void Meet() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++here_ == ranks_) {
      here_ = 0;
      ++round_;
      all_.notify_all();
      return;
    }
    const bool met = all_.wait_for(lock, kPatience, [&] { return round_ != round || abandoned_; });
    if (met) return;
    abandoned_ = true;
    all_.notify_all();
    ADD_FAILURE() << here_ << " of " << ranks_ << " ranks came to a meeting";
  }

 private:
  static constexpr std::chrono::seconds kPatience{40};  // more than an executor's timeout

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable all_;
  int here_ = 0;
  int64_t round_ = 0;
  bool abandoned_ = false;
};

}  // namespace bucketd::agent
