#include "server/rpc/get_plan_reactor.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/impl/codegen/proto_utils.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/byte_room.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/jobs/machine/job_call.h"
#include "server/plans/plan_request.h"
#include "server/plans/request_memo.h"
#include "server/rpc/handoff.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/plan_source.h"
#include "server/rpc/ranks_call.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

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

// Requests of more bytes than these are read on a worker: what takes milliseconds to read would
// keep other calls of gRPC's thread waiting.
constexpr size_t kReadAtOnceBytes = RequestMemo::kMaxRequestBytes;

class GetPlanReactor final : public grpc::ServerUnaryReactor {
 public:
  GetPlanReactor(const ServiceParts& parts, CallbackServerContext* context,
                 const ByteBuffer& request, ByteBuffer* response)
      : parts_(parts),
        context_(*context),
        request_(const_cast<ByteBuffer&>(request)),  // gRPC would keep the bytes till the end
        response_(*response),
        scope_(Method::kGetPlan, parts.metrics),
        held_(parts.request_room, HostOf(context->peer())),
        caller_(parts.admission.Admit(Method::kGetPlan, *context)) {
    if (!caller_.ok()) {
      End(caller_.status());
      return;
    }
    // Cancellation is reported only after this constructor: gRPC does not know the reactor yet.
    if (PlanReplyPtr reply = KnownHit()) {
      End(PlanAnswer{PlanOutcome::kHit, std::move(reply), 0, {}});
      return;
    }
    if (request.Length() <= kReadAtOnceBytes) {
      Ask();
    } else {
      AskLater();
    }
    HandToGrpc(this);
  }

  void OnCancel() override {
    TakeFromGrpc(this);
    cancelled_ = true;
    CancelCalls();
  }
  void OnDone() override {
    TakeFromGrpc(this);
    LetGo();
  }

 private:
  // Nothing of a large request is looked at before there is room for its bytes, and nothing is
  // parsed before there is room for what it will take parsed: refusing costs next to nothing.
  void AskLater() {
    const absl::Status room = held_.Resize(static_cast<int64_t>(request_.Length()));
    if (!room.ok()) {
      End(room);
      return;
    }
    ++holders_;
    if (parts_.request_pool.TrySubmit([this] { AskOnWorker(); })) return;
    --holders_;
    End(MakeError(Reason::kOverloaded, "too many large requests are being read"));
  }

  void AskOnWorker() {
    const auto parsed_bytes = kHeldTimes * static_cast<int64_t>(request_.Length());
    const absl::Status room = cancelled_ ? MakeError(Reason::kCancelled, "the caller went away")
                                         : held_.Resize(parsed_bytes);
    if (room.ok()) {
      Ask();
    } else {
      End(room);
    }
    if (cancelled_) CancelCalls();  // who went away meanwhile was not known to anybody yet
    HandToGrpc(this);
    LetGo();
  }

  void Ask() {
    v1::GetPlanRequest message;
    const absl::Status read = Read(message);
    if (read.ok() && job_.has_value() && parts_.routes != nullptr) {
      Route(message);
      return;
    }
    absl::StatusOr<std::shared_ptr<PlanRequest>> parsed =
        read.ok() ? ReadPlanRequest(message, parts_.costs) : read;
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
    const absl::Status room = Hold(**parsed, std::move(held_));
    if (!room.ok()) {
      End(room);
      return;
    }
    (*parsed)->peer = HostOf(context_.peer());
    (*parsed)->by = ActorOf(*caller_, context_);
    (*parsed)->tenant_is_known = !caller_->any_tenant;
    (*parsed)->call = scope_.ids(TraceOf(context_));
    Remember(**parsed);
    request_.Clear();  // the call may wait for long
    const SteadyTime deadline = DeadlineOf(context_, parts_.options.max_wait);
    if (job_.has_value()) {
      job_call_ = parts_.agreement.GetPlan(*job_, *std::move(parsed), deadline, end);
    } else {
      call_ = parts_.broker.GetPlan(*std::move(parsed), deadline, end);
    }
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
    graph_ = call->graph;
    call->peer = HostOf(context_.peer());
    call->by = ActorOf(*caller_, context_);
    call->tenant_is_known = !caller_->any_tenant;
    call->call = scope_.ids(TraceOf(context_));
    call->deadline = DeadlineOf(context_, parts_.options.max_wait);
    request_.Clear();
    routed_call_ = parts_.routes->GetPlan(
        *std::move(call), [this](const PlanBroker::Answer& answer) { End(answer); });
  }

  void CancelCalls() {
    if (parts_.routes != nullptr) parts_.routes->Cancel(routed_call_);
    parts_.broker.Cancel(call_);
    parts_.agreement.Cancel(job_call_);
  }

  // gRPC may be done with a call while the worker that asked for it is still here.
  void LetGo() {
    if (--holders_ == 0) delete this;
  }

  absl::Status Read(v1::GetPlanRequest& message) {
    if (parts_.draining) return MakeError(Reason::kDraining, "the server is shutting down");
    ByteBuffer bytes = request_;  // a reference; reading consumes it
    if (!grpc::SerializationTraits<v1::GetPlanRequest>::Deserialize(&bytes, &message).ok()) {
      return MakeError(Reason::kRequestMalformed, "not a serialised GetPlanRequest");
    }
    ASSIGN_OR_RETURN(const std::string tenant,
                     parts_.admission.TenantFor(*caller_, message.tenant()));
    message.set_tenant(tenant);
    lasting_ = !message.has_job() && !message.has_graph() &&
               !absl::EndsWith(message.options().cost_profile(), "latest");
    if (message.has_job()) {
      RETURN_IF_ERROR(CheckTenant(message.tenant()));
      ASSIGN_OR_RETURN(job_, ReadJob(message.tenant(), message.job()));
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
    if (!request_.TrySingleSlice(&bytes).ok()) return nullptr;
    const std::shared_ptr<const KnownRequest> known =
        parts_.memo.Get(caller_->KeyPrefix(), AsView(bytes));
    if (known == nullptr) return nullptr;
    graph_ = known->digest;
    return parts_.cache.Get(known->key);
  }

  // Only what these bytes will always mean.
  void Remember(const PlanRequest& parsed) {
    grpc::Slice bytes;
    if (lasting_ && request_.TrySingleSlice(&bytes).ok()) {
      parts_.memo.Put(caller_->KeyPrefix(), AsView(bytes), {parsed.digest, parsed.key});
    }
  }

  // Called once. What the request took is free before its caller is told: gRPC keeps this until the
  // answer is sent, and who reads slowly, or not at all, decides when that is.
  void End(const PlanBroker::Answer& answer) {
    request_.Clear();
    held_.Resize(0).IgnoreError();
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
  ByteBuffer& request_;
  ByteBuffer& response_;
  RequestScope scope_;
  ByteRoom::Held held_;  // until it is the request's
  const absl::StatusOr<Caller> caller_;
  Digest graph_{};
  bool lasting_ = false;  // the request will mean the same for ever
  std::optional<JobCall> job_;
  std::atomic<PlanBroker::CallId> call_{0};
  std::atomic<Agreement::CallId> job_call_{0};
  std::atomic<JobRoutes::CallId> routed_call_{0};
  std::atomic<bool> cancelled_{false};
  std::atomic<int> holders_{1};  // gRPC, and the worker
};

}  // namespace

grpc::ServerUnaryReactor* NewGetPlanReactor(const ServiceParts& parts,
                                            CallbackServerContext* context,
                                            const ByteBuffer& request, ByteBuffer* response) {
  return new GetPlanReactor(parts, context, request, response);
}

}  // namespace bucketd
