// The last errors that the server answered, for the status page and bucketctl. A caller who sends
// nonsense all day does not push out what is the server's own trouble: the two are kept apart.
// Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace bucketd {

struct RecentError {
  std::chrono::system_clock::time_point when;
  std::string method;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;   // proto/REASONS.md
  std::string message;  // cut to 300 bytes
  std::string request_id;
  std::string trace_id;  // "": the caller traced nothing
};

// Whether operators, not callers, are to look after such an error.
bool IsServersTrouble(absl::StatusCode code);

class RecentErrors {
 public:
  void Add(RecentError error);
  // The newest first, at most kKept of each sort.
  std::vector<RecentError> List() const;

  static constexpr size_t kKept = 25;

 private:
  mutable absl::Mutex mutex_;
  std::deque<RecentError> troubles_ ABSL_GUARDED_BY(mutex_);  // the newest last
  std::deque<RecentError> refusals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
