#include "server/rpc/cost_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "proto/cost_service.grpc.pb.h"
#include "server/base/errors.h"
#include "server/base/host.h"
#include "server/base/shares.h"
#include "server/base/worker_pool.h"
#include "server/costs/cost_names.h"
#include "server/costs/cost_proposals.h"
#include "server/graphs/upload_streams.h"
#include "server/rpc/handoff.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/stream_reactor.h"
#include "server/rpc/unary_call.h"

namespace bucketd {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

constexpr int kCostThreads = 1;
constexpr int kCostQueue = 64;
constexpr int kMaxBatch = 4096;
// Of a profile with as many rows as one may have, or a batch of samples: names and all, twice.
constexpr int64_t kMostProfileBytes = int64_t{1} << 20;

v1::ProfileVersion ToProto(const ProfileInfo& info) {
  v1::ProfileVersion message;
  message.set_name(info.name);
  message.set_version(static_cast<uint32_t>(info.version));
  message.set_origin(static_cast<v1::ProfileOrigin>(info.origin));
  message.set_promoted(info.promoted);
  message.set_readable(info.readable);
  message.set_about(info.about);
  message.set_by(info.by);
  message.set_created_unix_ms(info.created_unix_ms);
  message.set_links(static_cast<uint32_t>(info.links));
  return message;
}

void ClassToProto(const LinkClass& of, v1::CollectiveSample& message) {
  CollectiveSample sample;
  sample.of = of;
  sample.launches = 0;
  SampleToProto(sample, message);
}

void ProposalToProto(const CostProposal& proposal, v1::ProposeProfileResponse& response) {
  if (proposal.version.has_value()) *response.mutable_version() = ToProto(*proposal.version);
  response.set_promoted(proposal.promoted);
  response.set_gamma_us_before(proposal.fit.gamma_before_us);
  response.set_gamma_us_after(proposal.fit.gamma_after_us);
  for (const ClassFit& fit : proposal.fit.classes) {
    v1::ClassProposal& message = *response.add_classes();
    ClassToProto(fit.of, *message.mutable_of());
    message.set_alpha_us_before(fit.before.alpha_us);
    message.set_alpha_us_after(fit.after.alpha_us);
    message.set_busbw_before(fit.before.busbw_bytes_per_s);
    message.set_busbw_after(fit.after.busbw_bytes_per_s);
    message.set_samples(static_cast<uint32_t>(fit.samples));
    message.set_outliers(static_cast<uint32_t>(fit.outliers));
    message.set_reporters(static_cast<uint32_t>(fit.reporters));
    message.set_quorum(fit.quorum);
    message.set_clamped(fit.clamped);
  }
}

// One stream of samples, which are taken in when it has ended well. One that breaks off leaves
// nothing.
class ReportReactor final : public StreamReactor {
 public:
  ReportReactor(const ServiceParts& parts, UploadStreams& reports, WorkerPool& pool,
                CallbackServerContext* context, ByteBuffer* response)
      : StreamReactor(parts, Method::kReportCosts,
                      {reports, pool, "too many changes of cost profiles wait"}, context),
        bytes_of_response_(*response) {
    Start(Begin());
  }

 private:
  absl::Status Begin() {
    ASSIGN_OR_RETURN(const Caller caller, parts_.admission.Admit(Method::kReportCosts, context_));
    by_ = ActorOf(caller, context_);
    if (parts_.draining) return DrainingError();
    return Open(ShareOf(caller.tenant, HostOf(context_.peer()), !caller.any_tenant));
  }

  absl::StatusOr<bool> Take(RequestBytes bytes) override {
    ASSIGN_OR_RETURN(const auto message, bytes.Read<v1::ReportCostsRequest>(kMostProfileBytes));
    if (message.has_header()) {
      RETURN_IF_ERROR(TakeHeader(message.header()));
    } else if (message.has_batch() && !report_.profile.empty()) {
      RETURN_IF_ERROR(TakeBatch(message.batch()));
    } else {
      return NoHeader();
    }
    return true;
  }

  static absl::Status NoHeader() {
    return MakeError(Reason::kUploadProtocol, "expected a header first, then batches of samples");
  }

  absl::Status TakeHeader(const v1::ReportHeader& header) {
    if (!report_.profile.empty()) {
      return MakeError(Reason::kUploadProtocol, "a second header; one report is about one profile");
    }
    RETURN_IF_ERROR(CheckProfileName(header.profile()));
    const std::vector<std::string> names = parts_.costs.Names();
    if (!std::binary_search(names.begin(), names.end(), header.profile())) {
      return parts_.costs.Resolve(header.profile(), "").status();
    }
    report_.by = {header.reporter(), header.job(), header.tool(), header.device()};
    const absl::Status valid = Validate(report_.by);
    if (!valid.ok()) return WithReason(Reason::kProfileInvalid, valid);
    report_.profile = header.profile();
    return absl::OkStatus();
  }

  absl::Status TakeBatch(const v1::SampleBatch& batch) {
    if (batch.samples_size() > kMaxBatch) {
      return MakeError(Reason::kProfileLimit, "too many samples in one message",
                       {.limit = kMaxBatch, .actual = batch.samples_size()});
    }
    seen_ += batch.samples_size();
    const int64_t limit = parts_.options.costs.max_report_samples;
    if (seen_ > limit) {
      return MakeError(Reason::kProfileLimit, "too many samples in one report; none was taken",
                       {.limit = limit, .actual = seen_});
    }
    for (int i = 0; i < batch.samples_size(); ++i) {
      absl::StatusOr<CollectiveSample> sample = SampleFromProto(batch.samples(i));
      if (sample.ok()) {
        report_.samples.push_back(*std::move(sample));
      } else {
        Refuse(absl::StrCat("sample ", seen_ - batch.samples_size() + i, ": ",
                            sample.status().message()));
      }
    }
    return absl::OkStatus();
  }

  void Refuse(const std::string& why) {
    if (response_.refused() == 0) response_.set_first_refusal(why);
    response_.set_refused(response_.refused() + 1);
    parts_.cost_metrics.samples(SampleResult::kRefused).Increment();
  }

  absl::Status TakeEnd() override {
    if (context_.IsCancelled()) {
      return MakeError(Reason::kCancelled, "the report broke off or stalled; none of it was taken");
    }
    return report_.profile.empty() ? NoHeader() : Store();
  }

  absl::Status Store() {
    ASSIGN_OR_RETURN(const CostSamples::Taken taken,
                     parts_.cost_samples.Add(
                         report_, VoterOf(by_.who, context_.peer(), report_.by.reporter), by_));
    response_.set_accepted(static_cast<uint32_t>(taken.accepted));
    if (taken.limited == 0) return absl::OkStatus();
    response_.set_refused(response_.refused() + static_cast<uint32_t>(taken.limited));
    if (response_.first_refusal().empty()) {
      response_.set_first_refusal("no more classes or samples are held; older ones expire");
    }
    return absl::OkStatus();
  }

  std::string Answer(const absl::Status& status) override {
    if (status.ok()) bytes_of_response_ = ToBytes(response_);
    return absl::StrCat("samples=", seen_);
  }

  ByteBuffer& bytes_of_response_;
  v1::ReportCostsResponse response_;
  CostReport report_;
  Actor by_;
  int64_t seen_ = 0;
};

using CostMethods = v1::CostProfiles::WithRawCallbackMethod_ListProfiles<
    v1::CostProfiles::WithRawCallbackMethod_GetProfile<
        v1::CostProfiles::WithRawCallbackMethod_ReportCosts<
            v1::CostProfiles::WithRawCallbackMethod_ImportProfile<
                v1::CostProfiles::WithRawCallbackMethod_ProposeProfile<
                    v1::CostProfiles::WithRawCallbackMethod_PromoteProfile<
                        v1::CostProfiles::WithRawCallbackMethod_RollbackProfile<
                            v1::CostProfiles::Service>>>>>>>;

class CostService final : public CostMethods {
 public:
  explicit CostService(const ServiceParts& parts)
      : parts_(parts),
        reports_({.max_streams = parts.options.costs.max_report_streams,
                  .stall = parts.options.upload_stall,
                  .deadline = parts.options.upload_deadline,
                  .least_rate = parts.options.upload_rate_bytes,
                  .what = "reports of costs"},
                 parts.metrics.displaced_reports),
        pool_(kCostThreads, kCostQueue) {}
  ~CostService() override { TakeFromGrpc(&reports_); }

  grpc::ServerUnaryReactor* ListProfiles(CallbackServerContext* context, const ByteBuffer* request,
                                         ByteBuffer* response) override {
    return Run(Method::kListProfiles, context, request, response, &CostService::List,
               /*changes=*/false);
  }
  grpc::ServerUnaryReactor* GetProfile(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return Run(Method::kGetProfile, context, request, response, &CostService::Get,
               /*changes=*/false);
  }
  grpc::ServerReadReactor<ByteBuffer>* ReportCosts(CallbackServerContext* context,
                                                   ByteBuffer* response) override {
    return new ReportReactor(parts_, reports_, pool_, context, response);
  }
  grpc::ServerUnaryReactor* ImportProfile(CallbackServerContext* context, const ByteBuffer* request,
                                          ByteBuffer* response) override {
    return Run(Method::kImportProfile, context, request, response, &CostService::Import,
               /*changes=*/true, kMostProfileBytes);
  }
  grpc::ServerUnaryReactor* ProposeProfile(CallbackServerContext* context,
                                           const ByteBuffer* request,
                                           ByteBuffer* response) override {
    return Run(Method::kProposeProfile, context, request, response, &CostService::Propose,
               /*changes=*/true);
  }
  grpc::ServerUnaryReactor* PromoteProfile(CallbackServerContext* context,
                                           const ByteBuffer* request,
                                           ByteBuffer* response) override {
    return Run(Method::kPromoteProfile, context, request, response, &CostService::Promote,
               /*changes=*/true);
  }
  grpc::ServerUnaryReactor* RollbackProfile(CallbackServerContext* context,
                                            const ByteBuffer* request,
                                            ByteBuffer* response) override {
    return Run(Method::kRollbackProfile, context, request, response, &CostService::Rollback,
               /*changes=*/true);
  }

 private:
  static constexpr int32_t kMaxVersion = 2'000'000'000;

  absl::StatusOr<v1::ListProfilesResponse> List(const v1::ListProfilesRequest& asked,
                                                const Actor&) {
    v1::ListProfilesResponse response;
    for (const ProfileInfo& info : parts_.costs.List(asked.name())) {
      *response.add_profiles() = ToProto(info);
    }
    for (const HeldClass& held : parts_.cost_samples.List(asked.name())) {
      v1::HeldSamples& message = *response.add_samples();
      message.set_profile(held.profile);
      ClassToProto(held.of, *message.mutable_of());
      message.set_samples(static_cast<uint32_t>(held.samples));
      message.set_reporters(static_cast<uint32_t>(held.voters));
      message.set_newest_unix_ms(held.newest_unix_ms);
    }
    return response;
  }

  absl::StatusOr<v1::GetProfileResponse> Get(const v1::GetProfileRequest& asked, const Actor&) {
    ASSIGN_OR_RETURN(const CostCatalog::ProfilePtr profile,
                     parts_.costs.Resolve(asked.profile(), asked.device_type()));
    ASSIGN_OR_RETURN(const ProfileInfo info, parts_.costs.Info(profile->name, profile->version));
    v1::GetProfileResponse response;
    ProfileToProto(*profile, *response.mutable_profile());
    *response.mutable_version() = ToProto(info);
    return response;
  }

  absl::StatusOr<v1::ImportProfileResponse> Import(const v1::ImportProfileRequest& asked,
                                                   const Actor& by) {
    v1::CostProfile message = asked.profile();
    message.set_version(1);  // the catalog numbers versions
    absl::StatusOr<CostProfile> profile = ProfileFromProto(message);
    if (!profile.ok()) return WithReason(Reason::kProfileInvalid, profile.status());
    ASSIGN_OR_RETURN(
        const CostCatalog::Added added,
        parts_.costs.Add(*std::move(profile), ProfileOrigin::kImported, asked.by(), by));
    v1::ImportProfileResponse response;
    *response.mutable_version() = ToProto(added.info);
    response.set_already_there(added.already_there);
    return response;
  }

  absl::StatusOr<v1::ProposeProfileResponse> Propose(const v1::ProposeProfileRequest& asked,
                                                     const Actor& by) {
    RETURN_IF_ERROR(CheckProfileName(asked.name()));
    ASSIGN_OR_RETURN(const CostProposal proposal,
                     bucketd::ProposeProfile(asked.name(), parts_.costs, parts_.cost_samples,
                                             parts_.options.costs, parts_.cost_metrics, by));
    v1::ProposeProfileResponse response;
    ProposalToProto(proposal, response);
    return response;
  }

  absl::StatusOr<v1::PromoteProfileResponse> Promote(const v1::PromoteProfileRequest& asked,
                                                     const Actor& by) {
    const auto version =
        static_cast<int32_t>(std::min(asked.version(), static_cast<uint32_t>(kMaxVersion)));
    return ToResponse<v1::PromoteProfileResponse>(
        parts_.costs.Promote(asked.name(), version, PromotionKind::kPromote, by));
  }

  absl::StatusOr<v1::RollbackProfileResponse> Rollback(const v1::RollbackProfileRequest& asked,
                                                       const Actor& by) {
    return ToResponse<v1::RollbackProfileResponse>(parts_.costs.Rollback(asked.name(), by));
  }

  template <typename Response>
  static absl::StatusOr<Response> ToResponse(
      const absl::StatusOr<CostCatalog::Switched>& switched) {
    if (!switched.ok()) return switched.status();
    Response response;
    *response.mutable_version() = ToProto(switched->info);
    response.set_before(static_cast<uint32_t>(switched->before));
    return response;
  }

  template <typename Request, typename Response>
  using Call = absl::StatusOr<Response> (CostService::*)(const Request&, const Actor&);

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Run(Method method, CallbackServerContext* context,
                                const ByteBuffer* given, ByteBuffer* response,
                                Call<Request, Response> call, bool changes,
                                int64_t most = kMostRequestBytes) {
    return AnswerOn<Request>(
        pool_, "calls about cost profiles", {method, *context, parts_.admission, parts_.metrics},
        given, response,
        [this, call, context, changes](const Request& request,
                                       const Caller& caller) -> absl::StatusOr<Response> {
          if (changes && parts_.draining) {
            return DrainingError();
          }
          return (this->*call)(request, ActorOf(caller, *context));
        },
        most);
  }

  const ServiceParts& parts_;
  UploadStreams reports_;
  WorkerPool pool_;  // last: its jobs use the others
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCostService(const ServiceParts& parts) {
  return std::make_unique<CostService>(parts);
}

}  // namespace bucketd
