#include "server/rpc/upload_reactor.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/plans/upload.h"
#include "server/rpc/handoff.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {
namespace {

// One message is read, handled on a worker, and only then is the next one read: that is the flow
// control, and it makes every member but `stalled_` belong to one thread at a time.
class UploadReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  UploadReactor(const ServiceParts& parts, grpc::CallbackServerContext* context,
                grpc::ByteBuffer* response)
      : parts_(parts),
        context_(*context),
        answer_(*response),
        scope_(Method::kUploadGraph, parts.metrics),
        session_(std::make_unique<UploadSession>(parts.intake, parts.graphs, parts.partial_uploads,
                                                 parts.broker, parts.metrics)) {
    const absl::Status begun = Begin();
    if (begun.ok()) {
      ReadNext();
    } else {
      End(begun);
    }
  }

  void OnReadDone(bool ok) override {
    TakeFromGrpc(this);
    parts_.timers.CancelAndWait(stall_timer_);
    const absl::Status came =
        ok ? parts_.upload_streams.Came(stream_, static_cast<int64_t>(message_.Length()))
           : absl::OkStatus();
    if (!came.ok()) {
      session_->KeepRest();
      End(came);
      return;
    }
    const bool submitted = parts_.intake_pool.TrySubmit([this, ok] {
      if (ok) {
        HandleMessage();
      } else {
        HandleEnd();
      }
    });
    if (submitted) return;
    session_->KeepRest();
    End(MakeError(Reason::kOverloaded, "too many graphs are being read"));
  }

  void OnDone() override {
    TakeFromGrpc(this);
    // The end of a stream may be seen before its cause: a client that died looks like one that
    // stopped too early until here.
    if (context_.IsCancelled()) session_->KeepRest();
    delete this;
  }

 private:
  ~UploadReactor() override {
    if (stream_ != 0) parts_.metrics.uploads_in_flight.Decrement();
    parts_.upload_streams.Close(stream_);
    HandToGrpc(&parts_.upload_streams);  // whose end waits for that of all reactors
  }

  absl::Status Begin() {
    ASSIGN_OR_RETURN(caller_, parts_.admission.Admit(Method::kUploadGraph, context_));
    if (parts_.draining) return MakeError(Reason::kDraining, "the server is shutting down");
    ASSIGN_OR_RETURN(stream_, parts_.upload_streams.Open({HostOf(context_.peer())}));
    parts_.metrics.uploads_in_flight.Increment();
    return absl::OkStatus();
  }

  void ReadNext() {
    const absl::StatusOr<SteadyTime> until = parts_.upload_streams.BeginWait(stream_);
    if (!until.ok()) {
      session_->KeepRest();
      End(until.status());
      return;
    }
    stall_timer_ = parts_.timers.Schedule(*until, [this] { Stalled(); });
    HandToGrpc(this);
    StartRead(&message_);
  }

  // Not Finish: the read may be only just starting, and nothing may start after Finish.
  void Stalled() {
    stalled_ = true;
    context_.TryCancel();
  }

  absl::StatusOr<UploadSession::Next> Handle() {
    ASSIGN_OR_RETURN(auto message,
                     RequestBytes(&message_).Read<v1::UploadGraphRequest>(kAsTransportAllows));
    if (message.has_header()) {
      v1::UploadHeader& header = *message.mutable_header();
      ASSIGN_OR_RETURN(const std::string tenant,
                       parts_.admission.TenantFor(caller_, header.tenant()));
      header.set_tenant(tenant);
      RETURN_IF_ERROR(CheckTenant(tenant));
      RETURN_IF_ERROR(TakeQuota(tenant, header.size()));
    }
    return session_->Handle(message);
  }

  // A second header is the session's to refuse.
  absl::Status TakeQuota(const std::string& tenant, int64_t bytes) {
    if (upload_.holds()) return absl::OkStatus();
    if (bytes > parts_.quotas.LimitOf(Quota::kGraphBytes, tenant)) {
      return parts_.quotas.Refuse(Quota::kGraphBytes, tenant, bytes, /*lasting=*/true);
    }
    ASSIGN_OR_RETURN(upload_, parts_.quotas.Take(Quota::kUploads, tenant));
    return absl::OkStatus();
  }

  void HandleMessage() {
    const absl::StatusOr<UploadSession::Next> next = Handle();
    if (!next.ok()) {
      // What was right so far may go on when there is room again.
      if (absl::IsResourceExhausted(next.status())) session_->KeepRest();
      End(next.status());
    } else if (*next == UploadSession::Next::kPresent) {
      response_.set_already_present(true);
      End(absl::OkStatus());
    } else {
      ReadNext();
    }
  }

  void HandleEnd() {
    // A dead client and one that is done end the stream alike.
    if (stalled_ || context_.IsCancelled()) session_->KeepRest();
    if (stalled_) {
      End(MakeError(Reason::kCancelled,
                    absl::StrCat("the upload stalled, or brought less than ",
                                 parts_.options.upload_rate_bytes, " bytes a second")));
    } else if (context_.IsCancelled()) {
      End(MakeError(Reason::kCancelled, "the caller went away during the upload"));
    } else {
      End(session_->Finish());
    }
  }

  static UploadOutcome OutcomeOf(const absl::Status& status, bool already_present) {
    if (status.ok()) {
      return already_present ? UploadOutcome::kAlreadyPresent : UploadOutcome::kStored;
    }
    return status.code() == absl::StatusCode::kCancelled ? UploadOutcome::kAbandoned
                                                         : UploadOutcome::kRejected;
  }

  void End(const absl::Status& status) {
    const Digest digest = session_->digest();
    message_.Clear();
    session_->Close();  // first: whoever hears of this end may ask again at once
    upload_ = {};
    response_.set_graph_digest(std::string(AsBytes(digest)));
    parts_.metrics.uploads(OutcomeOf(status, response_.already_present())).Increment();
    if (status.ok()) answer_ = ToBytes(response_);
    const grpc::Status ended =
        EndRequest(scope_, context_, status, absl::StrCat("graph=", ToHex(digest)));
    HandToGrpc(this);
    Finish(ended);
  }

  const ServiceParts& parts_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& answer_;
  v1::UploadGraphResponse response_;
  RequestScope scope_;
  Caller caller_;
  std::unique_ptr<UploadSession> session_;
  grpc::ByteBuffer message_;
  UploadStreams::Id stream_ = 0;
  Quotas::Held upload_;
  Timers::Id stall_timer_ = 0;
  std::atomic<bool> stalled_{false};
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* NewUploadReactor(const ServiceParts& parts,
                                                            grpc::CallbackServerContext* context,
                                                            grpc::ByteBuffer* response) {
  return new UploadReactor(parts, context, response);
}

}  // namespace bucketd
