// A computed plan as the bytes that answer whoever asks for it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

#include "passes/base/digest.h"

namespace bucketd {

// One plan, ready to be sent. Immutable.
struct PlanReply {
  // A serialised v1::GetPlanResponse whose last byte, and no other, says where the plan came from
  // (PlanReply.source): all callers share the rest.
  std::string response;
  size_t plan_begin = 0, plan_size = 0;  // where in it the serialised plan stands
  Digest plan_sha256{};
  std::string key;  // under which it is cached and stored
};
using PlanReplyPtr = std::shared_ptr<const PlanReply>;

PlanReplyPtr EncodePlanReply(std::string plan_bytes, std::string key);
// The serialised plan in it, for as long as it lives.
absl::string_view PlanBytesOf(const PlanReply& reply);

}  // namespace bucketd
