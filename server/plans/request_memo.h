// Which plan a GetPlan request asks for, by the bytes of the request: what is asked again and again
// need not be parsed, checked and written out as a key again and again. Thread-safe.
//
// Holds only what can never come to mean something else, so nothing here is ever taken back: not
// what names the latest of anything, not what carries a graph, not what speaks for a job. Whether
// there is a plan under the key is the plan cache's business alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/base/digest.h"
#include "server/base/lru.h"

namespace bucketd {

struct KnownRequest {
  Digest digest{};  // of the graph
  std::string key;  // plan_key.h
};

class RequestMemo {
 public:
  explicit RequestMemo(int64_t capacity_bytes) : lru_(capacity_bytes) {}

  // Null if absent. The whole request is compared, and who sent it: what the same bytes mean may
  // depend on that. `sender`: Caller::KeyPrefix.
  std::shared_ptr<const KnownRequest> Get(absl::string_view sender, absl::string_view request);
  // Requests of more than kMaxRequestBytes are left out.
  void Put(absl::string_view sender, absl::string_view request, KnownRequest known);

  static constexpr size_t kMaxRequestBytes = size_t{64} << 10;

 private:
  absl::Mutex mutex_;
  Lru<KnownRequest> lru_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
