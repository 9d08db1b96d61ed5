// A computed plan as the bytes that answer whoever asks for it.
#pragma once

#include <memory>
#include <string>

#include "passes/base/digest.h"

namespace bucketd {

// One plan, ready to be sent. Immutable.
struct PlanReply {
  // A serialised v1::GetPlanResponse whose last byte, and no other, says where the plan came from
  // (PlanReply.source): all callers share the rest.
  std::string response;
  Digest plan_sha256{};
  std::string key;  // under which it is cached and stored
};
using PlanReplyPtr = std::shared_ptr<const PlanReply>;

PlanReplyPtr EncodePlanReply(std::string plan_bytes, std::string key = {});
// The serialised plan in it.
std::string PlanBytesOf(const PlanReply& reply);

}  // namespace bucketd
