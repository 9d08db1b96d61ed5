#include "server/plans/plan_cache.h"

#include <utility>

#include "proto/planner.pb.h"

namespace bucketd {

PlanReplyPtr EncodePlanReply(std::string plan_bytes, std::string key) {
  auto reply = std::make_shared<PlanReply>();
  reply->key = std::move(key);
  reply->plan_sha256 = Sha256(plan_bytes);
  v1::GetPlanResponse response;
  v1::PlanReply& plan = *response.mutable_plan();
  plan.set_plan(std::move(plan_bytes));
  plan.set_plan_sha256(std::string(AsBytes(reply->plan_sha256)));
  // The highest field number is written last, and every source takes one byte.
  plan.set_source(v1::PLAN_SOURCE_HIT);
  reply->response = response.SerializeAsString();
  return reply;
}

std::string PlanBytesOf(const PlanReply& reply) {
  v1::GetPlanResponse response;
  response.ParseFromString(reply.response);
  return std::move(*response.mutable_plan()->mutable_plan());
}

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
  lru_.ForEach([&](const std::string& key, const PlanReply& reply) {
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
