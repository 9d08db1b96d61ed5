#include "server/rpc/planner_service.h"

#include <string>
#include <utility>

#include "grpcpp/support/byte_buffer.h"

#include "passes/base/status_macros.h"
#include "passes/pass/options.h"
#include "passes/planner.h"
#include "proto/planner.grpc.pb.h"
#include "server/base/errors.h"
#include "server/base/host.h"
#include "server/base/names.h"
#include "server/base/shares.h"
#include "server/base/version.h"
#include "server/plans/plan_request.h"
#include "server/rpc/get_plan_reactor.h"
#include "server/rpc/peer_jobs.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"
#include "server/rpc/upload_reactor.h"

namespace bucketd {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

class ReleaseJobReactor final : public grpc::ServerUnaryReactor {
 public:
  ReleaseJobReactor(const ServiceParts& parts, CallbackServerContext* context, RequestBytes bytes,
                    ByteBuffer* response)
      : parts_(parts),
        context_(*context),
        response_(*response),
        scope_(Method::kReleaseJob, parts.metrics) {
    absl::StatusOr<Agreement::Release> release = Read(bytes);
    if (!release.ok()) {
      End(release.status());
      return;
    }
    parts.agreement.ReleaseJobs(*release, [this, tenant = release->tenant](
                                              const absl::StatusOr<Agreement::Released>& released) {
      Released(tenant, released);
    });
  }

  void OnDone() override { delete this; }

 private:
  absl::StatusOr<Agreement::Release> Read(RequestBytes& bytes) {
    ASSIGN_OR_RETURN(const Caller caller, parts_.admission.Admit(Method::kReleaseJob, context_));
    ASSIGN_OR_RETURN(const auto request, bytes.Read<v1::ReleaseJobRequest>());
    ASSIGN_OR_RETURN(const std::string tenant,
                     parts_.admission.TenantFor(caller, request.tenant()));
    RETURN_IF_ERROR(CheckTenant(tenant));
    RETURN_IF_ERROR(CheckJobName("job_id", request.job_id()));
    return Agreement::Release{
        .tenant = tenant,
        .job = request.job_id(),
        .by = ActorOf(caller, context_),
        .share = ShareOf(tenant, HostOf(context_.peer()), !caller.any_tenant)};
  }

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
    if (released.ok()) {
      v1::ReleaseJobResponse response;
      response.set_released(static_cast<uint32_t>(released->pins));
      response_ = ToBytes(response);
    }
    Finish(EndRequest(scope_, context_, released.status(), ""));
  }

  const ServiceParts& parts_;
  CallbackServerContext& context_;
  ByteBuffer& response_;
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

using PlannerMethods = v1::Planner::WithRawCallbackMethod_GetCapabilities<
    v1::Planner::WithRawCallbackMethod_GetPlan<v1::Planner::WithRawCallbackMethod_UploadGraph<
        v1::Planner::WithRawCallbackMethod_QueryUpload<
            v1::Planner::WithRawCallbackMethod_ReleaseJob<v1::Planner::Service>>>>>;

class PlannerService final : public PlannerMethods {
 public:
  explicit PlannerService(const ServiceParts& parts)
      : parts_(parts), capabilities_(Capabilities(parts.options)) {}

  grpc::ServerUnaryReactor* GetCapabilities(CallbackServerContext* context,
                                            const ByteBuffer* request,
                                            ByteBuffer* response) override {
    RequestScope scope(Method::kGetCapabilities, parts_.metrics);
    RequestBytes bytes(request);
    absl::Status admitted = parts_.admission.Admit(Method::kGetCapabilities, *context).status();
    if (admitted.ok()) admitted = bytes.Read<v1::GetCapabilitiesRequest>().status();
    // By this call clients choose between servers.
    if (admitted.ok() && parts_.draining) {
      admitted = DrainingError();
    }
    if (admitted.ok()) {
      v1::GetCapabilitiesResponse capabilities = capabilities_;
      for (const std::string& name : parts_.costs.Names()) capabilities.add_cost_profiles(name);
      *response = ToBytes(capabilities);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(EndRequest(scope, *context, admitted, ""));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetPlan(CallbackServerContext* context, const ByteBuffer* request,
                                    ByteBuffer* response) override {
    return NewGetPlanReactor(parts_, context, request, response);
  }

  grpc::ServerUnaryReactor* ReleaseJob(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return new ReleaseJobReactor(parts_, context, RequestBytes(request), response);
  }

  grpc::ServerReadReactor<ByteBuffer>* UploadGraph(CallbackServerContext* context,
                                                   ByteBuffer* response) override {
    return NewUploadReactor(parts_, context, response);
  }

  grpc::ServerUnaryReactor* QueryUpload(CallbackServerContext* context, const ByteBuffer* request,
                                        ByteBuffer* response) override {
    RequestScope scope(Method::kQueryUpload, parts_.metrics);
    const absl::StatusOr<v1::QueryUploadResponse> said = Query(*context, RequestBytes(request));
    if (said.ok()) *response = ToBytes(*said);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(EndRequest(scope, *context, said.status(), ""));
    return reactor;
  }

 private:
  absl::StatusOr<v1::QueryUploadResponse> Query(const CallbackServerContext& context,
                                                RequestBytes bytes) {
    ASSIGN_OR_RETURN(
        const v1::QueryUploadRequest request,
        parts_.admission.Read<v1::QueryUploadRequest>(Method::kQueryUpload, context, bytes));
    RETURN_IF_ERROR(CheckTenant(request.tenant()));
    ASSIGN_OR_RETURN(const Digest digest, ReadDigest("graph_digest", request.graph_digest()));
    const std::string graph_key = GraphKey(request.tenant(), digest);
    v1::QueryUploadResponse response;
    response.set_present(parts_.graphs.Contains(graph_key));
    if (response.present() || request.content_sha256().empty()) return response;
    ASSIGN_OR_RETURN(const Digest content, ReadDigest("content_sha256", request.content_sha256()));
    response.set_committed_size(parts_.partial_uploads.CommittedSize(
        PartialUploads::Key(graph_key, request.codec(), content)));
    return response;
  }

  const ServiceParts& parts_;
  const v1::GetCapabilitiesResponse capabilities_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePlannerService(const ServiceParts& parts) {
  return std::make_unique<PlannerService>(parts);
}

}  // namespace bucketd
