#include "server/rpc/rendezvous_service.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "proto/agent.grpc.pb.h"
#include "server/base/errors.h"
#include "server/base/host.h"
#include "server/base/shares.h"
#include "server/rpc/handoff.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

ByteBuffer BytesOf(const std::shared_ptr<const Rendezvous::Met>& met) {
  std::call_once(met->encoded_once, [&met] {
    v1::RendezvousResponse response;
    response.set_epoch(met->epoch);
    response.set_token(met->token);
    response.mutable_endpoints()->Assign(met->endpoints.begin(), met->endpoints.end());
    met->encoded = response.SerializeAsString();
  });
  const grpc::Slice shared = Share(met, met->encoded);
  return ByteBuffer(&shared, 1);
}

v1::WatchEpochResponse ToProto(const Rendezvous::Fate& fate) {
  v1::WatchEpochResponse response;
  response.set_over(fate.over);
  response.set_why(fate.why);
  return response;
}

Shares::Path ShareOf(const Caller& caller, const std::string& tenant,
                     const CallbackServerContext& context) {
  return bucketd::ShareOf(tenant, HostOf(context.peer()), !caller.any_tenant);
}

// A call that waits in the rendezvous until it is answered or its caller goes away.
class WaitingReactor : public grpc::ServerUnaryReactor {
 public:
  WaitingReactor(Rendezvous& rendezvous, const ServiceParts& parts, Method method,
                 CallbackServerContext* context)
      : rendezvous_(rendezvous),
        context_(*context),
        scope_(method, parts.metrics),
        answer_by_(AnswerBy(std::chrono::steady_clock::now(),
                            DeadlineOf(*context, parts.options.max_wait))) {}

  void OnCancel() override {
    TakeFromGrpc(this);
    if (rendezvous_.Cancel(waits_)) {
      End(CallerGone(), "");
    }
  }
  void OnDone() override {
    TakeFromGrpc(this);
    delete this;
  }

 protected:
  SteadyTime answer_by() const { return answer_by_; }
  // gRPC learns of the reactor, and so calls it, only after it is constructed.
  void Waits(Rendezvous::Id id) {
    waits_ = id;
    HandToGrpc(this);
  }
  void End(const absl::Status& status, absl::string_view about) {
    const grpc::Status ended = EndRequest(scope_, context_, status, about);
    HandToGrpc(this);
    Finish(ended);
  }

 private:
  Rendezvous& rendezvous_;
  CallbackServerContext& context_;
  RequestScope scope_;
  const SteadyTime answer_by_;
  std::atomic<Rendezvous::Id> waits_{0};
};

class RendezvousReactor final : public WaitingReactor {
 public:
  RendezvousReactor(Rendezvous& rendezvous, const ServiceParts& parts,
                    CallbackServerContext* context, RequestBytes bytes, ByteBuffer* response)
      : WaitingReactor(rendezvous, parts, Method::kRendezvous, context) {
    const absl::StatusOr<Caller> caller = parts.admission.Admit(Method::kRendezvous, *context);
    const auto request = parts.admission.ReadFor<v1::RendezvousRequest>(caller, bytes);
    if (!request.ok()) {
      End(request.status(), "");
      return;
    }
    const std::string about = absl::StrCat("group=", request->group(), " rank=", request->rank());
    Waits(rendezvous.Join({.tenant = request->tenant(),
                           .group = request->group(),
                           .rank = request->rank(),
                           .size = request->size(),
                           .endpoint = request->endpoint(),
                           .agrees = request->agrees(),
                           .share = ShareOf(*caller, request->tenant(), *context)},
                          answer_by(), [this, response, about](const auto& met) {
                            if (met.ok()) *response = BytesOf(*met);
                            End(met.status(), about);
                          }));
  }
};

class WatchReactor final : public WaitingReactor {
 public:
  WatchReactor(Rendezvous& rendezvous, const ServiceParts& parts, CallbackServerContext* context,
               RequestBytes bytes, ByteBuffer* response)
      : WaitingReactor(rendezvous, parts, Method::kWatchEpoch, context) {
    const absl::StatusOr<Caller> caller = parts.admission.Admit(Method::kWatchEpoch, *context);
    const auto request = parts.admission.ReadFor<v1::WatchEpochRequest>(caller, bytes);
    if (!request.ok()) {
      End(request.status(), "");
      return;
    }
    Waits(rendezvous.Watch({.tenant = request->tenant(),
                            .group = request->group(),
                            .number = request->epoch(),
                            .share = ShareOf(*caller, request->tenant(), *context)},
                           answer_by(),
                           [this, response](const absl::StatusOr<Rendezvous::Fate>& fate) {
                             if (fate.ok()) *response = ToBytes(ToProto(*fate));
                             End(fate.status(), "");
                           }));
  }
};

using Service =
    v1::Agents::WithRawCallbackMethod_Rendezvous<v1::Agents::WithRawCallbackMethod_WatchEpoch<
        v1::Agents::WithRawCallbackMethod_EndEpoch<v1::Agents::Service>>>;

class RendezvousService final : public Service {
 public:
  RendezvousService(bucketd::Rendezvous& rendezvous, const ServiceParts& parts)
      : rendezvous_(rendezvous), parts_(parts) {}

  grpc::ServerUnaryReactor* Rendezvous(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return new RendezvousReactor(rendezvous_, parts_, context, RequestBytes(request), response);
  }
  grpc::ServerUnaryReactor* WatchEpoch(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return new WatchReactor(rendezvous_, parts_, context, RequestBytes(request), response);
  }
  grpc::ServerUnaryReactor* EndEpoch(CallbackServerContext* context, const ByteBuffer* request,
                                     ByteBuffer* response) override {
    RequestScope scope(Method::kEndEpoch, parts_.metrics);
    RequestBytes bytes(request);
    std::string about;
    const absl::Status status = End(*context, bytes, about);
    if (status.ok()) *response = ToBytes(v1::EndEpochResponse());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(EndRequest(scope, *context, status, about));
    return reactor;
  }

 private:
  absl::Status End(const CallbackServerContext& context, RequestBytes& bytes, std::string& about) {
    ASSIGN_OR_RETURN(const v1::EndEpochRequest request,
                     parts_.admission.Read<v1::EndEpochRequest>(Method::kEndEpoch, context, bytes));
    about = absl::StrCat("group=", request.group());
    return rendezvous_.End({request.tenant(), request.group(), request.epoch()}, request.rank(),
                           request.why());
  }

  bucketd::Rendezvous& rendezvous_;
  const ServiceParts& parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRendezvousService(Rendezvous& rendezvous,
                                                     const ServiceParts& parts) {
  return std::make_unique<RendezvousService>(rendezvous, parts);
}

}  // namespace bucketd
