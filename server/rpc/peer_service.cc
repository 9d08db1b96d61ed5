#include "server/rpc/peer_service.h"

#include <atomic>
#include <optional>
#include <utility>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "proto/peer.grpc.pb.h"
#include "server/rpc/forwarded.h"
#include "server/rpc/handoff.h"
#include "server/rpc/job_routes.h"
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
    absl::StatusOr<RanksCall> call = ReadForwarded(request);
    CrashPoint("forward: received");
    if (call.ok()) {
      call->deadline = DeadlineOf(context_, parts_.options.max_wait);
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
  void Answer(const std::optional<JobRoutes::Answer>& answer,
              const std::optional<ReplicaId>& holder) {
    reply_ = ForwardReplyOf(answer, holder, request_.with_plan());
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
