// Graphs that came, decoded and verified, by GraphKey. A graph is here to be planned again with
// other options, not to be kept: what is evicted is asked for again. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/ir/graph.h"
#include "server/base/lru.h"
#include "server/base/metrics.h"
#include "server/tenants/quotas.h"

namespace bucketd {

using GraphPtr = std::shared_ptr<const Graph>;

class GraphStore {
 public:
  // Both outlive this. Keeps one graph at least, whatever its size; of a tenant the one that came
  // last, and of the others no more than its quota.
  GraphStore(int64_t capacity_bytes, ServerMetrics& metrics, Quotas& quotas);

  GraphPtr Get(absl::string_view graph_key);  // null if absent
  bool Contains(absl::string_view graph_key);
  void Put(const std::string& graph_key, GraphPtr graph);

 private:
  void KeepWithinQuota(const std::string& graph_key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ServerMetrics& metrics_;
  Quotas& quotas_;
  absl::Mutex mutex_;
  Lru<Graph> lru_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
