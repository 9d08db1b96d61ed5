#include "server/graphs/graph_store.h"

#include <utility>

namespace bucketd {

GraphStore::GraphStore(int64_t capacity_bytes, ServerMetrics& metrics)
    : metrics_(metrics), lru_(capacity_bytes) {}

GraphPtr GraphStore::Get(absl::string_view graph_key) {
  const absl::MutexLock lock(&mutex_);
  return lru_.Get(graph_key);
}

bool GraphStore::Contains(absl::string_view graph_key) {
  const absl::MutexLock lock(&mutex_);
  return lru_.Contains(graph_key);
}

void GraphStore::Put(const std::string& graph_key, GraphPtr graph) {
  const int64_t bytes = graph->memory_footprint();
  const absl::MutexLock lock(&mutex_);
  const int64_t evictions = lru_.evictions();
  lru_.Put(graph_key, std::move(graph), bytes);
  metrics_.graph_cache_bytes.Set(static_cast<double>(lru_.bytes()));
  metrics_.graph_cache_entries.Set(static_cast<double>(lru_.entries()));
  metrics_.graph_cache_evictions.Increment(static_cast<double>(lru_.evictions() - evictions));
}

}  // namespace bucketd
