#include "server/rpc/planner_service.h"

#include <string>
#include <utility>

#include "grpcpp/support/byte_buffer.h"

#include "passes/base/status_macros.h"
#include "passes/pass/options.h"
#include "passes/planner.h"
#include "proto/planner.grpc.pb.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/base/version.h"
#include "server/plans/plan_request.h"
#include "server/rpc/get_plan_reactor.h"
#include "server/rpc/peer_jobs.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"
#include "server/rpc/upload_reactor.h"

namespace bucketd {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

class ReleaseJobReactor final : public grpc::ServerUnaryReactor {
 public:
  ReleaseJobReactor(const ServiceParts& parts, CallbackServerContext* context,
                    const v1::ReleaseJobRequest& request, v1::ReleaseJobResponse* response)
      : parts_(parts),
        context_(*context),
        response_(*response),
        scope_(Method::kReleaseJob, parts.metrics) {
    const absl::StatusOr<Caller> caller = parts.admission.Admit(Method::kReleaseJob, *context);
    const absl::StatusOr<std::string> tenant =
        caller.ok() ? parts.admission.TenantFor(*caller, request.tenant()) : caller.status();
    absl::Status status = tenant.ok() ? CheckTenant(*tenant) : tenant.status();
    if (status.ok()) status = CheckJobName("job_id", request.job_id());
    if (!status.ok()) {
      End(status);
      return;
    }
    parts.agreement.ReleaseJobs(
        {.tenant = *tenant, .job = request.job_id(), .by = ActorOf(*caller, *context)},
        [this, tenant = *tenant](const absl::StatusOr<Agreement::Released>& released) {
          Released(tenant, released);
        });
  }

  void OnDone() override { delete this; }

 private:
  void Released(const std::string& tenant, const absl::StatusOr<Agreement::Released>& released) {
    if (!released.ok() || parts_.peer_jobs == nullptr) {
      End(released);
      return;
    }
    // One of them has the job; who cannot be reached forgets it later.
    v1::ForgetJobsRequest forget;
    forget.set_tenant(tenant);
    for (const std::string& job : released->jobs) forget.add_job_id(job);
    parts_.peer_jobs->Forget(forget,
                             [this, released](const ForgottenElsewhere&) { End(released); });
  }

  void End(const absl::StatusOr<Agreement::Released>& released) {
    if (released.ok()) response_.set_released(static_cast<uint32_t>(released->pins));
    Finish(EndRequest(scope_, context_, released.status(), ""));
  }

  const ServiceParts& parts_;
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
    absl::Status admitted = parts_.admission.Admit(Method::kGetCapabilities, *context).status();
    // By this call clients choose between servers.
    if (admitted.ok() && parts_.draining) {
      admitted = MakeError(Reason::kDraining, "the server is shutting down");
    }
    if (admitted.ok()) {
      *response = capabilities_;
      for (const std::string& name : parts_.costs.Names()) response->add_cost_profiles(name);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(EndRequest(scope, *context, admitted, ""));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetPlan(CallbackServerContext* context, const ByteBuffer* request,
                                    ByteBuffer* response) override {
    return NewGetPlanReactor(parts_, context, *request, response);
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
    reactor->Finish(EndRequest(scope, *context, Query(*context, *request, *response), ""));
    return reactor;
  }

 private:
  absl::Status Query(const CallbackServerContext& context, const v1::QueryUploadRequest& request,
                     v1::QueryUploadResponse& response) {
    ASSIGN_OR_RETURN(const std::string tenant,
                     parts_.admission.TenantOf(Method::kQueryUpload, context, request.tenant()));
    absl::Status status = CheckTenant(tenant);
    if (!status.ok()) return status;
    const absl::StatusOr<Digest> digest = ReadDigest("graph_digest", request.graph_digest());
    if (!digest.ok()) return digest.status();
    const std::string graph_key = GraphKey(tenant, *digest);
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
