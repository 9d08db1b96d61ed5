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

namespace bucketd {

using GraphPtr = std::shared_ptr<const Graph>;

class GraphStore {
 public:
  // `metrics` outlives this. Keeps one graph at least, whatever its size.
  GraphStore(int64_t capacity_bytes, ServerMetrics& metrics);

  GraphPtr Get(absl::string_view graph_key);  // null if absent
  bool Contains(absl::string_view graph_key);
  void Put(const std::string& graph_key, GraphPtr graph);

 private:
  ServerMetrics& metrics_;
  absl::Mutex mutex_;
  Lru<Graph> lru_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bucketd
