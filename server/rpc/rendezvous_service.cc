#include "server/rpc/rendezvous_service.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"

#include "proto/agent.grpc.pb.h"
#include "server/base/errors.h"
#include "server/rpc/handoff.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

using grpc::CallbackServerContext;

// An answer that comes at the deadline is an answer that nobody reads.
constexpr std::chrono::milliseconds kMaxMargin{250};

SteadyTime DeadlineOf(const CallbackServerContext& context, std::chrono::milliseconds max_wait) {
  const auto wall_now = std::chrono::system_clock::now();
  const auto now = std::chrono::steady_clock::now();
  const auto deadline = context.deadline();  // time_point::max() if the caller has none
  if (deadline >= wall_now + max_wait) return now + max_wait;
  const auto left = deadline - wall_now;
  return now + left - std::min<decltype(left)>(kMaxMargin, left / 4);
}

// A call that waits in the rendezvous until it is answered or its caller goes away.
class WaitingReactor : public grpc::ServerUnaryReactor {
 public:
  WaitingReactor(Rendezvous& rendezvous, ServerMetrics& metrics, Method method,
                 CallbackServerContext* context)
      : rendezvous_(rendezvous), context_(*context), scope_(method, metrics) {}

  void OnCancel() override {
    TakeFromGrpc(this);
    if (rendezvous_.Cancel(waits_)) {
      End(MakeError(Reason::kCancelled, "the caller went away"), "");
    }
  }
  void OnDone() override {
    TakeFromGrpc(this);
    delete this;
  }

 protected:
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
  std::atomic<Rendezvous::Id> waits_{0};
};

class RendezvousReactor final : public WaitingReactor {
 public:
  RendezvousReactor(Rendezvous& rendezvous, const Admission& admission, ServerMetrics& metrics,
                    CallbackServerContext* context, const v1::RendezvousRequest& request,
                    v1::RendezvousResponse* response, SteadyTime deadline)
      : WaitingReactor(rendezvous, metrics, Method::kRendezvous, context) {
    const std::string about = absl::StrCat("group=", request.group(), " rank=", request.rank());
    const absl::StatusOr<std::string> tenant =
        admission.TenantOf(Method::kRendezvous, *context, request.tenant());
    if (!tenant.ok()) {
      End(tenant.status(), about);
      return;
    }
    Waits(rendezvous.Join({.tenant = *tenant,
                           .group = request.group(),
                           .rank = request.rank(),
                           .size = request.size(),
                           .endpoint = request.endpoint(),
                           .agrees = request.agrees()},
                          deadline, [this, response, about](const auto& met) {
                            if (met.ok()) {
                              response->set_epoch((*met)->epoch);
                              response->set_token((*met)->token);
                              response->mutable_endpoints()->Assign((*met)->endpoints.begin(),
                                                                    (*met)->endpoints.end());
                            }
                            End(met.status(), about);
                          }));
  }
};

class WatchReactor final : public WaitingReactor {
 public:
  WatchReactor(Rendezvous& rendezvous, const Admission& admission, ServerMetrics& metrics,
               CallbackServerContext* context, const v1::WatchEpochRequest& request,
               v1::WatchEpochResponse* response, SteadyTime deadline)
      : WaitingReactor(rendezvous, metrics, Method::kWatchEpoch, context) {
    const absl::StatusOr<std::string> tenant =
        admission.TenantOf(Method::kWatchEpoch, *context, request.tenant());
    if (!tenant.ok()) {
      End(tenant.status(), "");
      return;
    }
    Waits(rendezvous.Watch({*tenant, request.group(), request.epoch()}, deadline,
                           [this, response](const absl::StatusOr<Rendezvous::Fate>& fate) {
                             if (fate.ok()) {
                               response->set_over(fate->over);
                               response->set_why(fate->why);
                             }
                             End(fate.status(), "");
                           }));
  }
};

using Service = v1::Agents::WithCallbackMethod_Rendezvous<v1::Agents::WithCallbackMethod_WatchEpoch<
    v1::Agents::WithCallbackMethod_EndEpoch<v1::Agents::Service>>>;

class RendezvousService final : public Service {
 public:
  RendezvousService(bucketd::Rendezvous& rendezvous, const Admission& admission,
                    ServerMetrics& metrics, std::chrono::milliseconds max_wait)
      : rendezvous_(rendezvous), admission_(admission), metrics_(metrics), max_wait_(max_wait) {}

  grpc::ServerUnaryReactor* Rendezvous(CallbackServerContext* context,
                                       const v1::RendezvousRequest* request,
                                       v1::RendezvousResponse* response) override {
    return new RendezvousReactor(rendezvous_, admission_, metrics_, context, *request, response,
                                 DeadlineOf(*context, max_wait_));
  }
  grpc::ServerUnaryReactor* WatchEpoch(CallbackServerContext* context,
                                       const v1::WatchEpochRequest* request,
                                       v1::WatchEpochResponse* response) override {
    return new WatchReactor(rendezvous_, admission_, metrics_, context, *request, response,
                            DeadlineOf(*context, max_wait_));
  }
  grpc::ServerUnaryReactor* EndEpoch(CallbackServerContext* context,
                                     const v1::EndEpochRequest* request,
                                     v1::EndEpochResponse*) override {
    RequestScope scope(Method::kEndEpoch, metrics_);
    const absl::StatusOr<std::string> tenant =
        admission_.TenantOf(Method::kEndEpoch, *context, request->tenant());
    const absl::Status status = tenant.ok()
                                    ? rendezvous_.End({*tenant, request->group(), request->epoch()},
                                                      request->rank(), request->why())
                                    : tenant.status();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(EndRequest(scope, *context, status, absl::StrCat("group=", request->group())));
    return reactor;
  }

 private:
  bucketd::Rendezvous& rendezvous_;
  const Admission& admission_;
  ServerMetrics& metrics_;
  const std::chrono::milliseconds max_wait_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRendezvousService(Rendezvous& rendezvous,
                                                     const Admission& admission,
                                                     ServerMetrics& metrics,
                                                     std::chrono::milliseconds max_wait) {
  return std::make_unique<RendezvousService>(rendezvous, admission, metrics, max_wait);
}

}  // namespace bucketd
