#include "server/rpc/peer_service.h"

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "passes/base/status_macros.h"
#include "proto/peer.grpc.pb.h"
#include "server/admin/job_list.h"
#include "server/base/worker_pool.h"
#include "server/rpc/forwarded.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/reading_reactor.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/status_grpc.h"
#include "server/rpc/unary_call.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

// Of what operators ask all replicas.
constexpr int kPeerThreads = 1;
constexpr int kPeerQueue = 64;
// Names of as many jobs as are released in one call, twice.
constexpr int64_t kMostForgetBytes = int64_t{256} << 10;

class ForwardReactor final : public ReadingReactor {
 public:
  ForwardReactor(const ServiceParts& parts, uint64_t incarnation, CallbackServerContext* context,
                 const ByteBuffer* request, ByteBuffer* reply)
      : ReadingReactor(parts, Method::kForward, context, request),
        incarnation_(incarnation),
        bytes_of_reply_(*reply) {
    const absl::Status admitted = parts.admission.Admit(Method::kForward, *context).status();
    if (admitted.ok()) {
      Begin();
    } else {
      EndCall(admitted);
    }
  }

 private:
  void Ask() override {
    const auto request = request_.Read<v1::ForwardRequest>(kAsTransportAllows);
    if (!request.ok()) {
      End(request.status());
      return;
    }
    if (parts_.draining || request->incarnation() != incarnation_) {
      Answer(std::nullopt, std::nullopt);
      return;
    }
    with_plan_ = request->with_plan();
    absl::StatusOr<RanksCall> call = Read(*request);
    if (!call.ok()) {
      End(call.status());
      return;
    }
    id_ = parts_.routes->Serve(*std::move(call), [this](const auto& answer, const auto& holder) {
      Answer(answer, holder);
    });
  }

  absl::StatusOr<RanksCall> Read(const v1::ForwardRequest& request) {
    absl::StatusOr<RanksCall> call = ReadForwarded(request);
    CrashPoint("forward: received");
    if (!call.ok()) return call;
    call->deadline = DeadlineOf(context_, parts_.options.max_wait);
    // Its bytes are kept as long as it waits: by whoever it came from.
    held_ = ByteRoom::Held(parts_.request_room, call->asker.peer);
    RETURN_IF_ERROR(held_.Resize(static_cast<int64_t>(call->request->size())));
    return call;
  }

  void CancelCalls() override { parts_.routes->Cancel(id_); }

  // What its caller is told, who is behind the other replica.
  void End(const absl::Status& status) override { Answer(status, std::nullopt); }

  void Answer(const std::optional<JobRoutes::Answer>& answer,
              const std::optional<ReplicaId>& holder) {
    bytes_of_reply_ = BytesOf(ForwardReplyOf(answer, holder), PlanBeside(answer, with_plan_));
    EndCall(absl::OkStatus());
  }

  void EndCall(const absl::Status& status) {
    GiveBack();
    CrashPoint("forward: to be answered");
    FinishWith(status, "");
    CrashPoint("forward: answered");
  }

  const uint64_t incarnation_;
  ByteBuffer& bytes_of_reply_;
  bool with_plan_ = false;
  std::atomic<JobRoutes::CallId> id_{0};
};

using PeerMethods =
    v1::Peers::WithRawCallbackMethod_Forward<v1::Peers::WithRawCallbackMethod_ShowJobs<
        v1::Peers::WithRawCallbackMethod_ForgetJobs<v1::Peers::Service>>>;

class PeerService final : public PeerMethods {
 public:
  PeerService(const ServiceParts& parts, uint64_t incarnation,
              std::function<std::vector<v1::JobStatus>()> jobs)
      : parts_(parts),
        incarnation_(incarnation),
        jobs_(std::move(jobs)),
        pool_(kPeerThreads, kPeerQueue) {}

  grpc::ServerUnaryReactor* Forward(CallbackServerContext* context, const ByteBuffer* request,
                                    ByteBuffer* reply) override {
    return new ForwardReactor(parts_, incarnation_, context, request, reply);
  }

  grpc::ServerUnaryReactor* ShowJobs(CallbackServerContext* context, const ByteBuffer* request,
                                     ByteBuffer* reply) override {
    return Run<v1::ShowJobsRequest>(Method::kShowJobs, *context, request, reply, kMostRequestBytes,
                                    [this](const v1::ShowJobsRequest& asked) {
                                      v1::ShowJobsReply said;
                                      std::vector<v1::JobStatus> jobs = jobs_();
                                      said.set_truncated(KeepAsked(asked, jobs));
                                      for (v1::JobStatus& job : jobs)
                                        *said.add_jobs() = std::move(job);
                                      return said;
                                    });
  }

  grpc::ServerUnaryReactor* ForgetJobs(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* reply) override {
    return Run<v1::ForgetJobsRequest>(
        Method::kForgetJobs, *context, request, reply, kMostForgetBytes,
        [this](const v1::ForgetJobsRequest& asked) {
          v1::ForgetJobsReply said;
          for (const std::string& job : parts_.agreement.Forget(asked)) said.add_job_id(job);
          return said;
        });
  }

 private:
  // On a thread of the service: jobs may be many, and their ranks as well.
  template <typename Request, typename Call>
  grpc::ServerUnaryReactor* Run(Method method, CallbackServerContext& context,
                                const ByteBuffer* given, ByteBuffer* reply, int64_t most,
                                Call call) {
    return AnswerOn<Request>(
        pool_, "calls of replicas", {method, context, parts_.admission, parts_.metrics}, given,
        reply,
        [this, call](const Request& request,
                     const Caller&) -> absl::StatusOr<decltype(call(request))> {
          if (request.incarnation() != incarnation_) {
            return absl::FailedPreconditionError("another process has its address by now");
          }
          return call(request);
        },
        most);
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
