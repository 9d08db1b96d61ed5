#include "server/rpc/peer_service.h"

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "passes/base/status_macros.h"
#include "proto/peer.grpc.pb.h"
#include "server/base/errors.h"
#include "server/rpc/handoff.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/plan_source.h"
#include "server/rpc/ranks_call.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using grpc::CallbackServerContext;

class ForwardReactor final : public grpc::ServerUnaryReactor {
 public:
  ForwardReactor(const ServiceParts& parts, uint64_t incarnation, CallbackServerContext* context,
                 const v1::ForwardRequest& request, v1::ForwardReply& reply)
      : parts_(parts),
        context_(*context),
        request_(request),
        reply_(reply),
        scope_(Method::kForward, parts.metrics) {
    const absl::Status admitted = parts.admission.Admit(Method::kForward, *context).status();
    if (!admitted.ok()) {
      End(admitted);
      return;
    }
    if (parts.draining || request.incarnation() != incarnation) {
      reply.mutable_moved();
      End(absl::OkStatus());
      return;
    }
    absl::StatusOr<RanksCall> call = Read();
    CrashPoint("forward: received");
    if (call.ok()) {
      id_ = parts.routes->Serve(*std::move(call), [this](const auto& answer, const auto& holder) {
        Answer(answer, holder);
      });
    } else {
      Answer(call.status(), std::nullopt);
    }
    HandToGrpc(this);
  }

  void OnCancel() override {
    TakeFromGrpc(this);
    parts_.routes->Cancel(id_);
  }
  void OnDone() override {
    TakeFromGrpc(this);
    delete this;
  }

 private:
  absl::StatusOr<RanksCall> Read() {
    v1::GetPlanRequest message;
    if (!message.ParseFromString(request_.request())) {
      return MakeError(Reason::kRequestMalformed, "not a serialised GetPlanRequest");
    }
    ASSIGN_OR_RETURN(RanksCall call, ReadRanksCall(message));
    const v1::ForwardedCaller& caller = request_.caller();
    call.peer = caller.host();
    call.by = {caller.name(), caller.host(), caller.tenant()};
    call.tenant_is_known = caller.tenant_is_known();
    call.call = {caller.request_id(), caller.trace_id(), caller.span_id(), caller.parent_span_id()};
    call.deadline = DeadlineOf(context_, parts_.options.max_wait);
    return call;
  }

  void Answer(const std::optional<JobRoutes::Answer>& answer,
              const std::optional<ReplicaId>& holder) {
    if (!answer.has_value()) {
      v1::Moved& moved = *reply_.mutable_moved();
      if (holder.has_value()) {
        moved.set_holder(holder->address);
        moved.set_incarnation(holder->incarnation);
      }
    } else if (!answer->ok()) {
      reply_.set_error(SerializeRpcStatus(answer->status()));
    } else if ((*answer)->reply != nullptr) {
      const PlanReply& plan = *(*answer)->reply;
      v1::PlanReference& reference = *reply_.mutable_plan();
      reference.set_key(plan.key);
      reference.set_plan_sha256(std::string(AsBytes(plan.plan_sha256)));
      reference.set_source(SourceOf((*answer)->outcome));
      if (request_.with_plan()) reference.set_plan(PlanBytesOf(plan));
    } else if ((*answer)->outcome == PlanOutcome::kUnplanned) {
      reply_.mutable_unplanned()->set_why((*answer)->unplanned);
    } else {
      reply_.mutable_graph_required()->set_upload_lease_ms((*answer)->upload_lease_ms);
    }
    End(absl::OkStatus());
  }

  void End(const absl::Status& status) {
    const grpc::Status ended = EndRequest(scope_, context_, status, "");
    CrashPoint("forward: to be answered");
    HandToGrpc(this);
    Finish(ended);
    CrashPoint("forward: answered");
  }

  const ServiceParts& parts_;
  CallbackServerContext& context_;
  const v1::ForwardRequest& request_;
  v1::ForwardReply& reply_;
  RequestScope scope_;
  std::atomic<JobRoutes::CallId> id_{0};
};

class PeerService final : public v1::Peers::WithCallbackMethod_Forward<v1::Peers::Service> {
 public:
  PeerService(const ServiceParts& parts, uint64_t incarnation)
      : parts_(parts), incarnation_(incarnation) {}

  grpc::ServerUnaryReactor* Forward(CallbackServerContext* context,
                                    const v1::ForwardRequest* request,
                                    v1::ForwardReply* reply) override {
    return new ForwardReactor(parts_, incarnation_, context, *request, *reply);
  }

 private:
  const ServiceParts& parts_;
  const uint64_t incarnation_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePeerService(const ServiceParts& parts, uint64_t incarnation) {
  return std::make_unique<PeerService>(parts, incarnation);
}

}  // namespace bucketd
