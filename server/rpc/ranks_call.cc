#include "server/rpc/ranks_call.h"

#include <memory>
#include <string>
#include <utility>

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/names.h"
#include "server/base/shares.h"
#include "server/plans/read_plan_request.h"

namespace bucketd {

absl::StatusOr<RanksCall> ReadRanksCall(const v1::GetPlanRequest& message) {
  RETURN_IF_ERROR(CheckTenant(message.tenant()));
  RETURN_IF_ERROR(ReadJob(message.tenant(), message.job()).status());
  RanksCall call;
  call.request = std::make_shared<const std::string>(message.SerializeAsString());
  call.tenant = message.tenant();
  call.job = message.job().id();
  call.scope = message.job().scope();
  // One that is none is refused with the rest of the request.
  const absl::StatusOr<Digest> graph = DigestFromBytes(message.graph_digest());
  if (graph.ok()) call.graph = *graph;
  call.graph_key = GraphKey(call.tenant, call.graph);
  return call;
}

Agreement::CallId AskAgreement(const ServiceParts& parts, JobCall job, v1::GetPlanRequest& message,
                               Asker asker, ByteRoom::Held held, SteadyTime deadline,
                               Agreement::Done done) {
  job.share = ShareOf(job.tenant, asker.peer, asker.tenant_is_known);
  absl::StatusOr<std::shared_ptr<PlanRequest>> request = ReadPlanRequest(message, parts.costs);
  if (!request.ok()) {
    parts.agreement.Refuse(job, request.status(), std::move(done));
    return 0;
  }
  const absl::Status room = Hold(**request, job.ranks.size(), std::move(held));
  if (!room.ok()) {
    done(room);
    return 0;
  }
  (*request)->asker = std::move(asker);
  return parts.agreement.GetPlan(job, *std::move(request), deadline, std::move(done));
}

Agreement::CallId AskAgreement(const ServiceParts& parts, const RanksCall& call,
                               Agreement::Done done) {
  v1::GetPlanRequest message;
  message.ParseFromString(*call.request);              // it was serialised by ReadRanksCall
  JobCall job = *ReadJob(call.tenant, message.job());  // and this was checked there
  job.records = call.records;
  return AskAgreement(parts, std::move(job), message, call.asker,
                      ByteRoom::Held(parts.request_room, call.asker.peer), call.deadline,
                      std::move(done));
}

}  // namespace bucketd
