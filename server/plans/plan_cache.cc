#include "server/plans/plan_cache.h"

#include <utility>

namespace bucketd {

PlanCache::PlanCache(int64_t capacity_bytes, ServerMetrics& metrics)
    : metrics_(metrics), lru_(capacity_bytes) {}

PlanReplyPtr PlanCache::Get(absl::string_view key) {
  const absl::MutexLock lock(&mutex_);
  return lru_.Get(key);
}

void PlanCache::Put(const std::string& key, PlanReplyPtr reply) {
  const absl::MutexLock lock(&mutex_);
  const int64_t evictions = lru_.evictions();
  const auto bytes = static_cast<int64_t>(reply->response.size() + reply->key.size());
  lru_.Put(key, std::move(reply), bytes);
  metrics_.plan_cache_evictions.Increment(static_cast<double>(lru_.evictions() - evictions));
  ShowSize();
}

std::vector<PlanCache::Entry> PlanCache::List() {
  std::vector<Entry> entries;
  const absl::MutexLock lock(&mutex_);
  entries.reserve(static_cast<size_t>(lru_.entries()));
  lru_.ForEach([&](const std::string& key, const PlanReply& reply, int64_t) {
    entries.push_back({key, static_cast<int64_t>(reply.response.size())});
  });
  return entries;
}

std::vector<std::string> PlanCache::TakeUsed(size_t limit) {
  const absl::MutexLock lock(&mutex_);
  return lru_.TakeUsed(limit);
}

bool PlanCache::Evict(absl::string_view key) {
  const absl::MutexLock lock(&mutex_);
  const bool was_there = lru_.Erase(key);
  ShowSize();
  return was_there;
}

void PlanCache::ShowSize() {
  metrics_.plan_cache_bytes.Set(static_cast<double>(lru_.bytes()));
  metrics_.plan_cache_entries.Set(static_cast<double>(lru_.entries()));
}

}  // namespace bucketd
