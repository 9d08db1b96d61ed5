// Replicas that could not be asked, for people: their callers are told that a rank is missing, and
// where they came to nobody else hears of it. Thread-safe.
#pragma once

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "server/base/clock.h"

namespace bucketd {

class Unreached {
 public:
  // Logs it, once a minute for each of them.
  void Failed(const std::string& address, absl::string_view why, SteadyTime now);
  void Answered(const std::string& address);
  // Of the last minute; "": nobody.
  std::string InWords(SteadyTime now) const;

 private:
  struct Failure {
    SteadyTime last, logged;
    std::string why;
  };
  mutable absl::Mutex mutex_;
  std::map<std::string, Failure> failures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
