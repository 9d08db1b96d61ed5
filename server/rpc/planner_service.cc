#include "server/rpc/planner_service.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"

#include "passes/base/status_macros.h"
#include "passes/pass/options.h"
#include "passes/planner.h"
#include "proto/planner.grpc.pb.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/base/version.h"
#include "server/jobs/machine/job_call.h"
#include "server/plans/plan_request.h"
#include "server/plans/request_memo.h"
#include "server/rpc/handoff.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"
#include "server/rpc/upload_reactor.h"

namespace bucketd {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

SteadyTime DeadlineOf(const CallbackServerContext& context, std::chrono::milliseconds max_wait) {
  const SteadyTime now = std::chrono::steady_clock::now();
  const auto wall_now = std::chrono::system_clock::now();
  const auto deadline = context.deadline();  // time_point::max() if the caller has none
  if (deadline >= wall_now + max_wait) return now + max_wait;
  return now + (deadline - wall_now);
}

v1::PlanSource SourceOf(PlanOutcome outcome) {
  switch (outcome) {
    case PlanOutcome::kComputed:
      return v1::PLAN_SOURCE_COMPUTED;
    case PlanOutcome::kJoined:
      return v1::PLAN_SOURCE_JOINED;
    case PlanOutcome::kPinned:
      return v1::PLAN_SOURCE_PINNED;
    default:
      return v1::PLAN_SOURCE_HIT;
  }
}

// Shares the cached bytes: a reply costs no copy however large the plan is.
ByteBuffer ToByteBuffer(const PlanReplyPtr& reply, PlanOutcome outcome) {
  const std::string& bytes = reply->response;
  auto* holder = new PlanReplyPtr(reply);
  const grpc::Slice shared(
      const_cast<char*>(bytes.data()), bytes.size() - 1,
      [](void* p) { delete static_cast<PlanReplyPtr*>(p); }, holder);
  const auto source = static_cast<char>(SourceOf(outcome));
  const grpc::Slice slices[] = {shared, grpc::Slice(&source, 1)};
  return ByteBuffer(slices, 2);
}

ByteBuffer ToByteBuffer(const PlanAnswer& answer) {
  if (answer.reply != nullptr) return ToByteBuffer(answer.reply, answer.outcome);
  v1::GetPlanResponse response;
  if (answer.outcome == PlanOutcome::kUnplanned) {
    response.mutable_unplanned()->set_why(answer.unplanned);
  } else {
    response.mutable_graph_required()->set_upload_lease_ms(answer.upload_lease_ms);
  }
  const grpc::Slice slice(response.SerializeAsString());
  return ByteBuffer(&slice, 1);
}

absl::string_view AsView(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

class GetPlanReactor final : public grpc::ServerUnaryReactor {
 public:
  GetPlanReactor(const ServiceParts& parts, CallbackServerContext* context,
                 const ByteBuffer& request, ByteBuffer* response)
      : parts_(parts),
        context_(*context),
        response_(*response),
        scope_(Method::kGetPlan, parts.metrics) {
    if (PlanReplyPtr reply = KnownHit(request)) {
      End(PlanAnswer{PlanOutcome::kHit, std::move(reply), 0, {}});
      return;
    }
    absl::StatusOr<std::shared_ptr<PlanRequest>> parsed = Parse(request);
    const auto end = [this](const PlanBroker::Answer& answer) { End(answer); };
    if (!parsed.ok()) {
      if (job_.has_value()) {
        parts_.agreement.Refuse(*job_, parsed.status(), end);
      } else {
        End(parsed.status());
      }
      return;
    }
    graph_ = (*parsed)->digest;
    (*parsed)->peer = HostOf(context->peer());
    (*parsed)->call = scope_.ids(TraceOf(*context));
    Remember(request, **parsed);
    // gRPC would keep the bytes for as long as the call waits.
    const_cast<ByteBuffer&>(request).Clear();
    const SteadyTime deadline = DeadlineOf(*context, parts.options.max_wait);
    // Cancellation is reported only after this constructor: gRPC does not know the reactor yet.
    if (job_.has_value()) {
      job_call_ = parts_.agreement.GetPlan(*job_, *std::move(parsed), deadline, end);
    } else {
      call_ = parts_.broker.GetPlan(*std::move(parsed), deadline, end);
    }
    HandToGrpc(this);
  }

  void OnCancel() override {
    TakeFromGrpc(this);
    parts_.broker.Cancel(call_);
    parts_.agreement.Cancel(job_call_);
  }
  void OnDone() override {
    TakeFromGrpc(this);
    delete this;
  }

 private:
  absl::StatusOr<std::shared_ptr<PlanRequest>> Parse(const ByteBuffer& request) {
    if (parts_.draining) return MakeError(Reason::kDraining, "the server is shutting down");
    ByteBuffer bytes = request;  // a reference; reading consumes it
    v1::GetPlanRequest message;
    if (!grpc::SerializationTraits<v1::GetPlanRequest>::Deserialize(&bytes, &message).ok()) {
      return MakeError(Reason::kRequestMalformed, "not a serialised GetPlanRequest");
    }
    lasting_ = !message.has_job() && !message.has_graph() &&
               !absl::EndsWith(message.options().cost_profile(), "latest");
    if (message.has_job()) {
      RETURN_IF_ERROR(CheckTenant(message.tenant()));
      ASSIGN_OR_RETURN(job_, ReadJob(message.tenant(), message.job()));
    } else {
      RETURN_IF_ERROR(CheckPlanningIsOn());
    }
    return ReadPlanRequest(message, parts_.costs);
  }

  // Ranks of a job hear of it through rank agreement, all alike. A call for none is refused, a hit
  // too: some ranks of a run may have their plan already.
  absl::Status CheckPlanningIsOn() const {
    const std::optional<std::string> why = parts_.planning.WhyDisabled();
    if (!why.has_value()) return absl::OkStatus();
    return MakeError(Reason::kPlanningDisabled,
                     absl::StrCat("an operator has switched planning off: ", *why));
  }

  // The plan of a request that came before in the same bytes, if it is in the cache. Null says
  // nothing: the long way finds out.
  PlanReplyPtr KnownHit(const ByteBuffer& request) {
    if (parts_.draining || parts_.planning.WhyDisabled().has_value()) return nullptr;
    grpc::Slice bytes;
    if (!request.TrySingleSlice(&bytes).ok()) return nullptr;
    const std::shared_ptr<const KnownRequest> known = parts_.memo.Get(AsView(bytes));
    if (known == nullptr) return nullptr;
    graph_ = known->digest;
    return parts_.cache.Get(known->key);
  }

  // Only what these bytes will always mean.
  void Remember(const ByteBuffer& request, const PlanRequest& parsed) {
    grpc::Slice bytes;
    if (lasting_ && request.TrySingleSlice(&bytes).ok()) {
      parts_.memo.Put(AsView(bytes), {parsed.digest, parsed.key});
    }
  }

  // Called once, by the broker or by the constructor.
  void End(const PlanBroker::Answer& answer) {
    const PlanOutcome outcome = answer.ok() ? answer->outcome : PlanOutcome::kError;
    parts_.metrics.plans(outcome).Increment();
    if (answer.ok()) response_ = ToByteBuffer(*answer);
    const std::string about = absl::StrCat("graph=", ToHex(graph_), " outcome=", Name(outcome));
    const grpc::Status status = EndRequest(scope_, context_, answer.status(), about);
    HandToGrpc(this);
    Finish(status);
  }

  const ServiceParts& parts_;
  CallbackServerContext& context_;
  ByteBuffer& response_;
  RequestScope scope_;
  Digest graph_{};
  bool lasting_ = false;  // the request will mean the same for ever
  std::optional<JobCall> job_;
  std::atomic<PlanBroker::CallId> call_{0};
  std::atomic<Agreement::CallId> job_call_{0};
};

class ReleaseJobReactor final : public grpc::ServerUnaryReactor {
 public:
  ReleaseJobReactor(const ServiceParts& parts, CallbackServerContext* context,
                    const v1::ReleaseJobRequest& request, v1::ReleaseJobResponse* response)
      : context_(*context), response_(*response), scope_(Method::kReleaseJob, parts.metrics) {
    absl::Status status = CheckTenant(request.tenant());
    if (status.ok()) status = CheckJobName("job_id", request.job_id());
    if (!status.ok()) {
      End(status);
      return;
    }
    parts.agreement.ReleaseJobs({.tenant = request.tenant(), .job = request.job_id()},
                                [this](const absl::StatusOr<Agreement::Released>& released) {
                                  if (released.ok()) {
                                    response_.set_released(static_cast<uint32_t>(released->pins));
                                  }
                                  End(released.status());
                                });
  }

  void OnDone() override { delete this; }

 private:
  void End(const absl::Status& status) { Finish(EndRequest(scope_, context_, status, "")); }

  CallbackServerContext& context_;
  v1::ReleaseJobResponse& response_;
  RequestScope scope_;
};

v1::GetCapabilitiesResponse Capabilities(const ServerOptions& options) {
  v1::GetCapabilitiesResponse response;
  response.set_server_version(kServerVersion);
  response.set_planner_version(kPlannerVersion);
  response.set_min_client_version(kMinClientVersion);
  for (const absl::string_view mode : PlanModes()) response.add_modes(std::string(mode));
  response.set_max_inline_graph_bytes(options.intake.max_inline_bytes);
  response.set_max_graph_bytes(options.intake.max_graph_bytes);
  response.set_max_graph_nodes(options.intake.max_graph_nodes);
  response.set_max_chunk_bytes(options.intake.max_chunk_bytes);
  response.add_codecs(v1::CODEC_UNSPECIFIED);
  response.add_codecs(v1::CODEC_ZSTD);
  response.set_graph_format_version(1);
  return response;
}

using CallbackService =
    v1::Planner::WithCallbackMethod_GetCapabilities<v1::Planner::WithRawCallbackMethod_GetPlan<
        v1::Planner::WithCallbackMethod_UploadGraph<v1::Planner::WithCallbackMethod_QueryUpload<
            v1::Planner::WithCallbackMethod_ReleaseJob<v1::Planner::Service>>>>>;

class PlannerService final : public CallbackService {
 public:
  explicit PlannerService(const ServiceParts& parts)
      : parts_(parts), capabilities_(Capabilities(parts.options)) {}

  grpc::ServerUnaryReactor* GetCapabilities(CallbackServerContext* context,
                                            const v1::GetCapabilitiesRequest*,
                                            v1::GetCapabilitiesResponse* response) override {
    RequestScope scope(Method::kGetCapabilities, parts_.metrics);
    *response = capabilities_;
    for (const std::string& name : parts_.costs.Names()) response->add_cost_profiles(name);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(EndRequest(scope, *context, absl::OkStatus(), ""));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetPlan(CallbackServerContext* context, const ByteBuffer* request,
                                    ByteBuffer* response) override {
    return new GetPlanReactor(parts_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ReleaseJob(CallbackServerContext* context,
                                       const v1::ReleaseJobRequest* request,
                                       v1::ReleaseJobResponse* response) override {
    return new ReleaseJobReactor(parts_, context, *request, response);
  }

  grpc::ServerReadReactor<v1::UploadGraphRequest>* UploadGraph(
      CallbackServerContext* context, v1::UploadGraphResponse* response) override {
    return NewUploadReactor(parts_, context, response);
  }

  grpc::ServerUnaryReactor* QueryUpload(CallbackServerContext* context,
                                        const v1::QueryUploadRequest* request,
                                        v1::QueryUploadResponse* response) override {
    RequestScope scope(Method::kQueryUpload, parts_.metrics);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(EndRequest(scope, *context, Query(*request, *response), ""));
    return reactor;
  }

 private:
  absl::Status Query(const v1::QueryUploadRequest& request, v1::QueryUploadResponse& response) {
    absl::Status status = CheckTenant(request.tenant());
    if (!status.ok()) return status;
    const absl::StatusOr<Digest> digest = ReadDigest("graph_digest", request.graph_digest());
    if (!digest.ok()) return digest.status();
    const std::string graph_key = GraphKey(request.tenant(), *digest);
    response.set_present(parts_.graphs.Contains(graph_key));
    if (response.present() || request.content_sha256().empty()) return status;
    const absl::StatusOr<Digest> content = ReadDigest("content_sha256", request.content_sha256());
    if (!content.ok()) return content.status();
    response.set_committed_size(parts_.partial_uploads.CommittedSize(
        PartialUploads::Key(graph_key, request.codec(), *content)));
    return status;
  }

  const ServiceParts& parts_;
  const v1::GetCapabilitiesResponse capabilities_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePlannerService(const ServiceParts& parts) {
  return std::make_unique<PlannerService>(parts);
}

}  // namespace bucketd
