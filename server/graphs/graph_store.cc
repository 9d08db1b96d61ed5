#include "server/graphs/graph_store.h"

#include <map>
#include <string>
#include <utility>

namespace bucketd {

namespace {

// GraphKey: the tenant, a byte of zero, the digest. No tenant has such a byte.
absl::string_view TenantOf(absl::string_view graph_key) {
  return graph_key.substr(0, graph_key.find('\0'));
}

}  // namespace

GraphStore::GraphStore(int64_t capacity_bytes, ServerMetrics& metrics, Quotas& quotas)
    : metrics_(metrics), quotas_(quotas), lru_(capacity_bytes) {}

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
  KeepWithinQuota(graph_key);
  metrics_.graph_cache_bytes.Set(static_cast<double>(lru_.bytes()));
  metrics_.graph_cache_entries.Set(static_cast<double>(lru_.entries()));
  metrics_.graph_cache_evictions.Increment(static_cast<double>(lru_.evictions() - evictions));
}

// O(graphs), which are some thousands at most, and come after they were parsed.
void GraphStore::KeepWithinQuota(const std::string& graph_key) {
  const absl::string_view tenant = TenantOf(graph_key);
  const int64_t most = quotas_.LimitOf(Quota::kGraphBytes, tenant);
  if (most != kUnbounded) lru_.KeepWithin(graph_key.substr(0, tenant.size() + 1), most);
  std::map<std::string, int64_t> used;
  lru_.ForEach([&](const std::string& key, const Graph&, int64_t bytes) {
    used[std::string(TenantOf(key))] += bytes;
  });
  quotas_.SetAll(Quota::kGraphBytes, used);
}

}  // namespace bucketd
