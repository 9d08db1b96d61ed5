// The first error of a communicator, kept for good.
#pragma once

#include <mutex>

#include "absl/status/status.h"

namespace bucketd::agent {

// Thread-safe.
class Health {
 public:
  absl::Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

  // Keeps `error` if it is the first one. Returns whether it is.
  bool Fail(const absl::Status& error) {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return false;
    status_ = error;
    return true;
  }

 private:
  mutable std::mutex mutex_;
  absl::Status status_;
};

}  // namespace bucketd::agent
