#include "server/rpc/cost_service.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/io/proto_io.h"
#include "proto/cost_service.grpc.pb.h"
#include "server/base/errors.h"
#include "server/base/worker_pool.h"
#include "server/costs/cost_names.h"
#include "server/costs/cost_proposals.h"
#include "server/rpc/handoff.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

using grpc::CallbackServerContext;

constexpr int kThreads = 1;
constexpr int kQueue = 64;
constexpr int kMaxBatch = 4096;

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

// What the reactors share.
struct Shared {
  explicit Shared(const CostServiceParts& p) : parts(p), pool(kThreads, kQueue) {}
  const CostServiceParts parts;
  std::atomic<int> reports{0};
  WorkerPool pool;  // last: its jobs use the others
};

// One stream of samples: read on gRPC's threads, taken in on the worker when it has ended well. A
// stream that breaks off leaves nothing.
class ReportReactor final : public grpc::ServerReadReactor<v1::ReportCostsRequest> {
 public:
  ReportReactor(Shared& shared, CallbackServerContext* context, v1::ReportCostsResponse* response)
      : shared_(shared),
        context_(*context),
        response_(*response),
        scope_(Method::kReportCosts, shared.parts.metrics) {
    const int32_t limit = shared_.parts.options.max_report_streams;
    const absl::StatusOr<Caller> caller =
        shared_.parts.admission.Admit(Method::kReportCosts, context_);
    const absl::Status admitted = caller.status();
    if (caller.ok()) by_ = ActorOf(*caller, context_);
    const int reports = shared_.reports.fetch_add(1);
    if (!admitted.ok()) {
      End(admitted);
    } else if (reports >= limit) {
      End(MakeError(Reason::kOverloaded, "too many reports of costs at a time",
                    {.limit = limit, .actual = -1, .node = {}}));
    } else if (shared_.parts.draining) {
      End(MakeError(Reason::kDraining, "the server is shutting down"));
    } else {
      ReadNext();
    }
  }

  void OnReadDone(bool ok) override {
    TakeFromGrpc(this);
    shared_.parts.timers.CancelAndWait(stall_timer_);
    if (!ok) {
      HandleEnd();
      return;
    }
    const absl::Status taken = Take();
    if (!taken.ok()) {
      End(taken);
    } else {
      message_.Clear();
      ReadNext();
    }
  }

  void OnDone() override {
    TakeFromGrpc(this);
    delete this;
  }

 private:
  ~ReportReactor() override { --shared_.reports; }

  void ReadNext() {
    stall_timer_ = shared_.parts.timers.Schedule(
        std::chrono::steady_clock::now() + shared_.parts.stall, [this] { context_.TryCancel(); });
    HandToGrpc(this);
    StartRead(&message_);
  }

  absl::Status Take() {
    if (message_.part_case() == v1::ReportCostsRequest::kHeader) return TakeHeader();
    if (message_.part_case() != v1::ReportCostsRequest::kBatch || report_.profile.empty()) {
      return MakeError(Reason::kUploadProtocol, "expected a header first, then batches of samples");
    }
    return TakeBatch();
  }

  absl::Status TakeHeader() {
    if (!report_.profile.empty()) {
      return MakeError(Reason::kUploadProtocol, "a second header; one report is about one profile");
    }
    const v1::ReportHeader& header = message_.header();
    RETURN_IF_ERROR(CheckProfileName(header.profile()));
    const std::vector<std::string> names = shared_.parts.catalog.Names();
    if (!std::binary_search(names.begin(), names.end(), header.profile())) {
      return shared_.parts.catalog.Resolve(header.profile(), "").status();
    }
    report_.by = {header.reporter(), header.job(), header.tool(), header.device()};
    const absl::Status valid = Validate(report_.by);
    if (!valid.ok()) return WithReason(Reason::kProfileInvalid, valid);
    report_.profile = header.profile();
    return absl::OkStatus();
  }

  absl::Status TakeBatch() {
    const v1::SampleBatch& batch = message_.batch();
    if (batch.samples_size() > kMaxBatch) {
      return MakeError(Reason::kProfileLimit, "too many samples in one message",
                       {.limit = kMaxBatch, .actual = batch.samples_size(), .node = {}});
    }
    seen_ += batch.samples_size();
    const int64_t limit = shared_.parts.options.max_report_samples;
    if (seen_ > limit) {
      return MakeError(Reason::kProfileLimit, "too many samples in one report; none was taken",
                       {.limit = limit, .actual = seen_, .node = {}});
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
    shared_.parts.cost_metrics.samples(SampleResult::kRefused).Increment();
  }

  void HandleEnd() {
    if (context_.IsCancelled()) {
      End(MakeError(Reason::kCancelled, "the report broke off or stalled; none of it was taken"));
    } else if (report_.profile.empty()) {
      End(MakeError(Reason::kUploadProtocol, "expected a header first, then batches of samples"));
    } else if (!shared_.pool.TrySubmit([this] { End(Store()); })) {
      End(MakeError(Reason::kOverloaded, "too many changes of cost profiles wait"));
    }
  }

  absl::Status Store() {
    ASSIGN_OR_RETURN(
        const CostSamples::Taken taken,
        shared_.parts.samples.Add(report_, VoterOf(context_.peer(), report_.by.reporter), by_));
    response_.set_accepted(static_cast<uint32_t>(taken.accepted));
    if (taken.limited == 0) return absl::OkStatus();
    response_.set_refused(response_.refused() + static_cast<uint32_t>(taken.limited));
    if (response_.first_refusal().empty()) {
      response_.set_first_refusal("no more classes or samples are held; older ones expire");
    }
    return absl::OkStatus();
  }

  void End(const absl::Status& status) {
    const grpc::Status ended =
        EndRequest(scope_, context_, status, absl::StrCat("samples=", seen_));
    HandToGrpc(this);
    Finish(ended);
  }

  Shared& shared_;
  CallbackServerContext& context_;
  v1::ReportCostsResponse& response_;
  RequestScope scope_;
  v1::ReportCostsRequest message_;
  CostReport report_;
  Actor by_;
  int64_t seen_ = 0;
  Timers::Id stall_timer_ = 0;
};

class CostService final : public v1::CostProfiles::CallbackService {
 public:
  explicit CostService(const CostServiceParts& parts) : shared_(parts) {}

  grpc::ServerUnaryReactor* ListProfiles(CallbackServerContext* context,
                                         const v1::ListProfilesRequest* request,
                                         v1::ListProfilesResponse* response) override {
    return Run(Method::kListProfiles, context, [this, request, response](const Actor&) {
      for (const ProfileInfo& info : parts().catalog.List(request->name())) {
        *response->add_profiles() = ToProto(info);
      }
      for (const HeldClass& held : parts().samples.List(request->name())) {
        v1::HeldSamples& message = *response->add_samples();
        message.set_profile(held.profile);
        ClassToProto(held.of, *message.mutable_of());
        message.set_samples(static_cast<uint32_t>(held.samples));
        message.set_reporters(static_cast<uint32_t>(held.voters));
        message.set_newest_unix_ms(held.newest_unix_ms);
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* GetProfile(CallbackServerContext* context,
                                       const v1::GetProfileRequest* request,
                                       v1::GetProfileResponse* response) override {
    return Run(
        Method::kGetProfile, context, [this, request, response](const Actor&) -> absl::Status {
          ASSIGN_OR_RETURN(const CostCatalog::ProfilePtr profile,
                           parts().catalog.Resolve(request->profile(), request->device_type()));
          ASSIGN_OR_RETURN(const ProfileInfo info,
                           parts().catalog.Info(profile->name, profile->version));
          ProfileToProto(*profile, *response->mutable_profile());
          *response->mutable_version() = ToProto(info);
          return absl::OkStatus();
        });
  }

  grpc::ServerReadReactor<v1::ReportCostsRequest>* ReportCosts(
      CallbackServerContext* context, v1::ReportCostsResponse* response) override {
    return new ReportReactor(shared_, context, response);
  }

  grpc::ServerUnaryReactor* ImportProfile(CallbackServerContext* context,
                                          const v1::ImportProfileRequest* request,
                                          v1::ImportProfileResponse* response) override {
    return Change(Method::kImportProfile, context,
                  [this, request, response](const Actor& by) -> absl::Status {
                    v1::CostProfile message = request->profile();
                    message.set_version(1);  // the catalog numbers versions
                    absl::StatusOr<CostProfile> profile = ProfileFromProto(message);
                    if (!profile.ok()) return WithReason(Reason::kProfileInvalid, profile.status());
                    ASSIGN_OR_RETURN(
                        const CostCatalog::Added added,
                        parts().catalog.Add(*std::move(profile), ProfileOrigin::kImported,
                                            request->by(), by));
                    *response->mutable_version() = ToProto(added.info);
                    response->set_already_there(added.already_there);
                    return absl::OkStatus();
                  });
  }

  grpc::ServerUnaryReactor* ProposeProfile(CallbackServerContext* context,
                                           const v1::ProposeProfileRequest* request,
                                           v1::ProposeProfileResponse* response) override {
    return Change(Method::kProposeProfile, context,
                  [this, request, response](const Actor& by) -> absl::Status {
                    RETURN_IF_ERROR(CheckProfileName(request->name()));
                    ASSIGN_OR_RETURN(
                        const CostProposal proposal,
                        bucketd::ProposeProfile(request->name(), parts().catalog, parts().samples,
                                                parts().options, parts().cost_metrics, by));
                    ProposalToProto(proposal, *response);
                    return absl::OkStatus();
                  });
  }

  grpc::ServerUnaryReactor* PromoteProfile(CallbackServerContext* context,
                                           const v1::PromoteProfileRequest* request,
                                           v1::PromoteProfileResponse* response) override {
    return Change(Method::kPromoteProfile, context, [this, request, response](const Actor& by) {
      const auto version =
          static_cast<int32_t>(std::min(request->version(), static_cast<uint32_t>(kMaxVersion)));
      return Switch(parts().catalog.Promote(request->name(), version, PromotionKind::kPromote, by),
                    *response);
    });
  }

  grpc::ServerUnaryReactor* RollbackProfile(CallbackServerContext* context,
                                            const v1::RollbackProfileRequest* request,
                                            v1::RollbackProfileResponse* response) override {
    return Change(Method::kRollbackProfile, context, [this, request, response](const Actor& by) {
      return Switch(parts().catalog.Rollback(request->name(), by), *response);
    });
  }

 private:
  static constexpr int32_t kMaxVersion = 2'000'000'000;

  const CostServiceParts& parts() const { return shared_.parts; }

  template <typename Response>
  static absl::Status Switch(const absl::StatusOr<CostCatalog::Switched>& switched,
                             Response& response) {
    if (!switched.ok()) return switched.status();
    *response.mutable_version() = ToProto(switched->info);
    response.set_before(static_cast<uint32_t>(switched->before));
    return absl::OkStatus();
  }

  grpc::ServerUnaryReactor* Change(Method method, CallbackServerContext* context,
                                   std::function<absl::Status(const Actor&)> call) {
    return Run(method, context, [this, call = std::move(call)](const Actor& by) -> absl::Status {
      if (parts().draining) return MakeError(Reason::kDraining, "the server is shutting down");
      return call(by);
    });
  }

  // gRPC keeps request, response and context until the reactor is done.
  grpc::ServerUnaryReactor* Run(Method method, CallbackServerContext* context,
                                std::function<absl::Status(const Actor&)> call) {
    auto scope = std::make_shared<RequestScope>(method, parts().metrics);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto end = [scope, reactor, context](const absl::Status& status) {
      reactor->Finish(EndRequest(*scope, *context, status, absl::StrCat("peer=", context->peer())));
    };
    const absl::StatusOr<Caller> caller = parts().admission.Admit(method, *context);
    if (!caller.ok()) {
      end(caller.status());
    } else if (!shared_.pool.TrySubmit([end, call = std::move(call),
                                        by = ActorOf(*caller, *context)] { end(call(by)); })) {
      end(MakeError(Reason::kOverloaded, "too many calls about cost profiles wait"));
    }
    return reactor;
  }

  Shared shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCostService(const CostServiceParts& parts) {
  return std::make_unique<CostService>(parts);
}

}  // namespace bucketd
