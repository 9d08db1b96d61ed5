// Computed plans by key, as the bytes that answer the next caller. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"

#include "passes/base/digest.h"
#include "server/lru.h"
#include "server/metrics.h"

namespace bucketd {

// One plan, ready to be sent. Immutable.
struct PlanReply {
  // A serialised v1::GetPlanResponse whose last byte, and no other, says where the plan came from
  // (PlanReply.source): all callers share the rest.
  std::string response;
  Digest plan_sha256{};
};
using PlanReplyPtr = std::shared_ptr<const PlanReply>;

PlanReplyPtr EncodePlanReply(std::string plan_bytes);

class PlanCache {
 public:
  // `metrics` outlives this. Keeps one plan at least, whatever its size.
  PlanCache(int64_t capacity_bytes, ServerMetrics& metrics);

  // Null if absent. A plan is found by its whole key.
  PlanReplyPtr Get(absl::string_view key);
  void Put(const std::string& key, PlanReplyPtr reply);

 private:
  ServerMetrics& metrics_;
  std::mutex mutex_;
  Lru<PlanReply> lru_;
};

}  // namespace bucketd
