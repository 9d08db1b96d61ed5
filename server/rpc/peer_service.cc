#include "server/rpc/peer_service.h"

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "proto/peer.grpc.pb.h"
#include "server/admin/job_list.h"
#include "server/base/errors.h"
#include "server/base/worker_pool.h"
#include "server/rpc/forwarded.h"
#include "server/rpc/handoff.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using grpc::CallbackServerContext;

// Of what operators ask all replicas.
constexpr int kThreads = 1;
constexpr int kQueue = 64;

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

using Service = v1::Peers::WithCallbackMethod_Forward<v1::Peers::WithCallbackMethod_ShowJobs<
    v1::Peers::WithCallbackMethod_ForgetJobs<v1::Peers::Service>>>;

class PeerService final : public Service {
 public:
  PeerService(const ServiceParts& parts, uint64_t incarnation,
              std::function<std::vector<v1::JobStatus>()> jobs)
      : parts_(parts), incarnation_(incarnation), jobs_(std::move(jobs)), pool_(kThreads, kQueue) {}

  grpc::ServerUnaryReactor* Forward(CallbackServerContext* context,
                                    const v1::ForwardRequest* request,
                                    v1::ForwardReply* reply) override {
    return new ForwardReactor(parts_, incarnation_, context, *request, *reply);
  }

  grpc::ServerUnaryReactor* ShowJobs(CallbackServerContext* context,
                                     const v1::ShowJobsRequest* request,
                                     v1::ShowJobsReply* reply) override {
    return Run(Method::kShowJobs, *context, request->incarnation(), [this, request, reply] {
      std::vector<v1::JobStatus> jobs = jobs_();
      reply->set_truncated(KeepAsked(*request, jobs));
      for (v1::JobStatus& job : jobs) *reply->add_jobs() = std::move(job);
    });
  }

  grpc::ServerUnaryReactor* ForgetJobs(CallbackServerContext* context,
                                       const v1::ForgetJobsRequest* request,
                                       v1::ForgetJobsReply* reply) override {
    return Run(Method::kForgetJobs, *context, request->incarnation(), [this, request, reply] {
      for (const std::string& job : parts_.agreement.Forget(*request)) reply->add_job_id(job);
    });
  }

 private:
  // On a thread of the service: jobs may be many, and their ranks as well.
  grpc::ServerUnaryReactor* Run(Method method, CallbackServerContext& context, uint64_t incarnation,
                                std::function<void()> call) {
    auto scope = std::make_shared<RequestScope>(method, parts_.metrics);
    grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
    const auto end = [scope, reactor, &context](const absl::Status& status) {
      reactor->Finish(EndRequest(*scope, context, status, ""));
    };
    absl::Status admitted = parts_.admission.Admit(method, context).status();
    if (admitted.ok() && incarnation != incarnation_) {
      admitted = absl::FailedPreconditionError("another process has its address by now");
    }
    if (!admitted.ok()) {
      end(admitted);
    } else if (!pool_.TrySubmit([end, call = std::move(call)] {
                 call();
                 end(absl::OkStatus());
               })) {
      end(MakeError(Reason::kOverloaded, "too many calls of replicas wait"));
    }
    return reactor;
  }

  const ServiceParts& parts_;
  const uint64_t incarnation_;
  const std::function<std::vector<v1::JobStatus>()> jobs_;
  WorkerPool pool_;  // last: its jobs use the others
};

}  // namespace

std::unique_ptr<grpc::Service> MakePeerService(const ServiceParts& parts, uint64_t incarnation,
                                               std::function<std::vector<v1::JobStatus>()> jobs) {
  return std::make_unique<PeerService>(parts, incarnation, std::move(jobs));
}

}  // namespace bucketd
