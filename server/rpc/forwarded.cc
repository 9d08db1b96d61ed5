#include "server/rpc/forwarded.h"

#include <string>

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/errors.h"
#include "server/rpc/plan_source.h"
#include "server/rpc/ranks_call.h"

namespace bucketd {

absl::StatusOr<RanksCall> ReadForwarded(const v1::ForwardRequest& request) {
  v1::GetPlanRequest message;
  if (!message.ParseFromString(request.request())) {
    return MakeError(Reason::kRequestMalformed, "not a serialised GetPlanRequest");
  }
  ASSIGN_OR_RETURN(RanksCall call, ReadRanksCall(message));
  const v1::ForwardedCaller& caller = request.caller();
  call.peer = caller.host();
  call.by = {caller.name(), caller.host(), caller.tenant()};
  call.tenant_is_known = caller.tenant_is_known();
  call.call = {caller.request_id(), caller.trace_id(), caller.span_id(), caller.parent_span_id()};
  return call;
}

v1::ForwardReply ForwardReplyOf(const std::optional<JobRoutes::Answer>& answer,
                                const std::optional<ReplicaId>& holder, bool with_plan) {
  v1::ForwardReply reply;
  if (!answer.has_value()) {
    v1::Moved& moved = *reply.mutable_moved();
    if (holder.has_value()) {
      moved.set_holder(holder->address);
      moved.set_incarnation(holder->incarnation);
    }
  } else if (!answer->ok()) {
    reply.set_error(SerializeRpcStatus(answer->status()));
  } else if ((*answer)->reply != nullptr) {
    const PlanReply& plan = *(*answer)->reply;
    v1::PlanReference& reference = *reply.mutable_plan();
    reference.set_key(plan.key);
    reference.set_plan_sha256(std::string(AsBytes(plan.plan_sha256)));
    reference.set_source(SourceOf((*answer)->outcome));
    if (with_plan || !(*answer)->is_kept) reference.set_plan(std::string(PlanBytesOf(plan)));
  } else if ((*answer)->outcome == PlanOutcome::kUnplanned) {
    reply.mutable_unplanned()->set_why((*answer)->unplanned);
  } else {
    reply.mutable_graph_required()->set_upload_lease_ms((*answer)->upload_lease_ms);
  }
  return reply;
}

}  // namespace bucketd
