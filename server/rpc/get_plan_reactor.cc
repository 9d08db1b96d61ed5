#include "server/rpc/get_plan_reactor.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/byte_room.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/jobs/machine/job_call.h"
#include "server/plans/read_plan_request.h"
#include "server/plans/request_memo.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/plan_source.h"
#include "server/rpc/ranks_call.h"
#include "server/rpc/reading_reactor.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

// Shares the cached bytes: a reply costs no copy however large the plan is.
ByteBuffer ToByteBuffer(const PlanReplyPtr& reply, PlanOutcome outcome) {
  const absl::string_view bytes = reply->response;
  const auto source = static_cast<char>(SourceOf(outcome));
  const grpc::Slice slices[] = {Share(reply, bytes.substr(0, bytes.size() - 1)),
                                grpc::Slice(&source, 1)};
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
  return ToBytes(response);
}

absl::string_view AsView(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

static_assert(kMostRequestBytes == RequestMemo::kMaxRequestBytes);

class GetPlanReactor final : public ReadingReactor {
 public:
  GetPlanReactor(const ServiceParts& parts, CallbackServerContext* context,
                 const ByteBuffer* request, ByteBuffer* response)
      : ReadingReactor(parts, Method::kGetPlan, context, request),
        response_(*response),
        caller_(parts.admission.Admit(Method::kGetPlan, *context)) {
    if (!caller_.ok()) {
      End(caller_.status());
    } else if (PlanReplyPtr reply = KnownHit()) {
      Answer(PlanAnswer{PlanOutcome::kHit, std::move(reply), 0, {}});
    } else {
      Begin();
    }
  }

 private:
  void Ask() override {
    v1::GetPlanRequest message;
    // May speak for many ranks, and is gone when the call waits or is answered.
    std::optional<JobCall> job;
    const absl::Status read = Read(message, job);
    if (!read.ok()) {
      End(read);
    } else if (!job.has_value()) {
      AskBroker(message);
    } else if (parts_.routes != nullptr) {
      Route(message);
    } else {
      request_.Clear();  // the call may wait for long
      job_call_ = AskAgreement(parts_, *std::move(job), message, WhoAsks(), std::move(held_),
                               Deadline(), [this](const auto& answer) { Answer(answer); });
    }
  }

  void AskBroker(v1::GetPlanRequest& message) {
    absl::StatusOr<std::shared_ptr<PlanRequest>> parsed = ReadPlanRequest(message, parts_.costs);
    const absl::Status held = parsed.ok() ? Hold(**parsed, 0, std::move(held_)) : parsed.status();
    if (!held.ok()) {
      End(held);
      return;
    }
    (*parsed)->asker = WhoAsks();
    Remember(**parsed);
    request_.Clear();
    call_ = parts_.broker.GetPlan(*std::move(parsed), Deadline(),
                                  [this](const auto& answer) { Answer(answer); });
  }

  // To the replica that has the job.
  void Route(const v1::GetPlanRequest& message) {
    absl::StatusOr<RanksCall> call = ReadRanksCall(message);
    if (call.ok()) {
      // Its bytes are kept as long as it waits.
      const absl::Status room = held_.Resize(static_cast<int64_t>(call->request->size()));
      if (!room.ok()) call = room;
    }
    if (!call.ok()) {
      End(call.status());
      return;
    }
    call->asker = WhoAsks();
    call->deadline = Deadline();
    request_.Clear();
    routed_call_ =
        parts_.routes->GetPlan(*std::move(call), [this](const auto& answer) { Answer(answer); });
  }

  Asker WhoAsks() const {
    return {.peer = HostOf(context_.peer()),
            .by = ActorOf(*caller_, context_),
            .tenant_is_known = !caller_->any_tenant,
            .call = scope_.ids(TraceOf(context_))};
  }
  SteadyTime Deadline() const { return DeadlineOf(context_, parts_.options.max_wait); }

  void CancelCalls() override {
    if (parts_.routes != nullptr) parts_.routes->Cancel(routed_call_);
    parts_.broker.Cancel(call_);
    parts_.agreement.Cancel(job_call_);
  }

  absl::Status Read(v1::GetPlanRequest& message, std::optional<JobCall>& job) {
    if (parts_.draining) return DrainingError();
    RequestBytes bytes = request_;  // Remember() looks at them, too
    ASSIGN_OR_RETURN(message, bytes.Read<v1::GetPlanRequest>(kAsTransportAllows));
    ASSIGN_OR_RETURN(const std::string tenant,
                     parts_.admission.TenantFor(*caller_, message.tenant()));
    message.set_tenant(tenant);
    const absl::StatusOr<Digest> graph = DigestFromBytes(message.graph_digest());
    if (graph.ok()) graph_ = *graph;
    lasting_ = !message.has_job() && !message.has_graph() &&
               !absl::EndsWith(message.options().cost_profile(), "latest");
    if (message.has_job()) {
      RETURN_IF_ERROR(CheckTenant(message.tenant()));
      ASSIGN_OR_RETURN(job, ReadJob(message.tenant(), message.job()));
    } else {
      RETURN_IF_ERROR(CheckPlanningIsOn());
    }
    return absl::OkStatus();
  }

  // Ranks of a job hear of it through rank agreement, all alike. A call for none is refused, a hit
  // too: some ranks of a run may have their plan already.
  absl::Status CheckPlanningIsOn() const {
    const std::optional<std::string> why = parts_.planning.WhyDisabled();
    if (!why.has_value()) return absl::OkStatus();
    return MakeError(Reason::kPlanningDisabled,
                     absl::StrCat("an operator has switched planning off: ", *why));
  }

  // The plan of a request that came before in the same bytes from the same tenant, if it is in the
  // cache. Null says nothing: the long way finds out.
  PlanReplyPtr KnownHit() {
    if (parts_.draining || parts_.planning.WhyDisabled().has_value()) return nullptr;
    grpc::Slice bytes;
    if (!request_.bytes().TrySingleSlice(&bytes).ok()) return nullptr;
    const std::shared_ptr<const KnownRequest> known =
        parts_.memo.Get(caller_->KeyPrefix(), AsView(bytes));
    if (known == nullptr) return nullptr;
    graph_ = known->digest;
    return parts_.cache.Get(known->key);
  }

  // Only what these bytes will always mean.
  void Remember(const PlanRequest& parsed) {
    grpc::Slice bytes;
    if (lasting_ && request_.bytes().TrySingleSlice(&bytes).ok()) {
      parts_.memo.Put(caller_->KeyPrefix(), AsView(bytes), {parsed.digest, parsed.key});
    }
  }

  void End(const absl::Status& status) override { Answer(status); }

  // Called once.
  void Answer(const PlanBroker::Answer& answer) {
    GiveBack();
    const PlanOutcome outcome = answer.ok() ? answer->outcome : PlanOutcome::kError;
    parts_.metrics.plans(outcome).Increment();
    if (answer.ok()) response_ = ToByteBuffer(*answer);
    FinishWith(answer.status(), absl::StrCat("graph=", ToHex(graph_), " outcome=", Name(outcome)));
  }

  ByteBuffer& response_;
  const absl::StatusOr<Caller> caller_;
  Digest graph_{};        // that is asked about, for the log
  bool lasting_ = false;  // the request will mean the same for ever
  std::atomic<PlanBroker::CallId> call_{0};
  std::atomic<Agreement::CallId> job_call_{0};
  std::atomic<JobRoutes::CallId> routed_call_{0};
};

}  // namespace

grpc::ServerUnaryReactor* NewGetPlanReactor(const ServiceParts& parts,
                                            CallbackServerContext* context,
                                            const ByteBuffer* request, ByteBuffer* response) {
  return new GetPlanReactor(parts, context, request, response);
}

}  // namespace bucketd
