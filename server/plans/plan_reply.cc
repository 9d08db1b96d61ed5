#include "server/plans/plan_reply.h"

#include <utility>

#include "proto/planner.pb.h"

namespace bucketd {

PlanReplyPtr EncodePlanReply(std::string plan_bytes, std::string key) {
  auto reply = std::make_shared<PlanReply>();
  reply->key = std::move(key);
  reply->plan_size = plan_bytes.size();
  reply->plan_sha256 = Sha256(plan_bytes);
  v1::GetPlanResponse response;
  v1::PlanReply& plan = *response.mutable_plan();
  plan.set_plan(std::move(plan_bytes));
  plan.set_plan_sha256(std::string(AsBytes(reply->plan_sha256)));
  // Fields are written by number: the source last, in one byte whatever it is, and the plan first,
  // so that what the reply takes without it stands behind it.
  plan.set_source(v1::PLAN_SOURCE_HIT);
  reply->response = response.SerializeAsString();
  plan.clear_plan();
  reply->plan_begin = reply->response.size() - plan.ByteSizeLong() - reply->plan_size;
  return reply;
}

absl::string_view PlanBytesOf(const PlanReply& reply) {
  return absl::string_view(reply.response).substr(reply.plan_begin, reply.plan_size);
}

}  // namespace bucketd
