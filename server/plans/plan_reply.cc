#include "server/plans/plan_reply.h"

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

}  // namespace bucketd
