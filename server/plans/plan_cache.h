// Computed plans by key, as the bytes that answer the next caller. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "server/base/lru.h"
#include "server/base/metrics.h"
#include "server/plans/plan_reply.h"

namespace bucketd {

class PlanCache {
 public:
  // `metrics` outlives this. Keeps one plan at least, whatever its size.
  PlanCache(int64_t capacity_bytes, ServerMetrics& metrics);

  // Null if absent. A plan is found by its whole key.
  PlanReplyPtr Get(absl::string_view key);
  void Put(const std::string& key, PlanReplyPtr reply);

  struct Entry {
    std::string key;
    int64_t bytes = 0;  // of the reply
  };
  // The most recently used first. O(entries) under the lock: for operators, not for requests.
  std::vector<Entry> List();
  // As Lru's: for the store, which is to know what was used in memory.
  std::vector<std::string> TakeUsed(size_t limit);
  bool Evict(absl::string_view key);  // whether it was there; not counted as an eviction for room

 private:
  void ShowSize() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ServerMetrics& metrics_;
  absl::Mutex mutex_;
  Lru<PlanReply> lru_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
