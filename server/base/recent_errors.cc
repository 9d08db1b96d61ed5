#include "server/base/recent_errors.h"

#include <algorithm>
#include <utility>

#include "server/base/errors.h"

namespace bucketd {
namespace {

constexpr size_t kMaxMessageBytes = 300;

}  // namespace

bool IsServersTrouble(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

void RecentErrors::Add(RecentError error) {
  error.message = Clip(error.message, kMaxMessageBytes);
  const absl::MutexLock lock(&mutex_);
  std::deque<RecentError>& list = IsServersTrouble(error.code) ? troubles_ : refusals_;
  list.push_back(std::move(error));
  if (list.size() > kKept) list.pop_front();
}

std::vector<RecentError> RecentErrors::List() const {
  std::vector<RecentError> all;
  {
    const absl::MutexLock lock(&mutex_);
    all.assign(troubles_.begin(), troubles_.end());
    all.insert(all.end(), refusals_.begin(), refusals_.end());
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const RecentError& a, const RecentError& b) { return a.when > b.when; });
  return all;
}

}  // namespace bucketd
