#include "server/rpc/upload_reactor.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "proto/planner.pb.h"
#include "server/base/errors.h"
#include "server/base/host.h"
#include "server/base/names.h"
#include "server/plans/upload.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/stream_reactor.h"

namespace bucketd {
namespace {

class UploadReactor final : public StreamReactor {
 public:
  UploadReactor(const ServiceParts& parts, grpc::CallbackServerContext* context,
                grpc::ByteBuffer* response)
      : StreamReactor(parts, Method::kUploadGraph,
                      {parts.upload_streams, parts.intake_pool, "too many graphs are being read"},
                      context),
        answer_(*response),
        session_(parts.intake, parts.graphs, parts.partial_uploads, parts.broker, parts.metrics) {
    Start(Begin());
  }

 private:
  ~UploadReactor() override {
    // The end of a stream may be seen before its cause: a client that died looks like one that
    // stopped too early until here.
    if (context_.IsCancelled()) session_.KeepRest();
    if (is_open()) parts_.metrics.uploads_in_flight.Decrement();
  }

  absl::Status Begin() {
    ASSIGN_OR_RETURN(caller_, parts_.admission.Admit(Method::kUploadGraph, context_));
    if (parts_.draining) return DrainingError();
    RETURN_IF_ERROR(Open({HostOf(context_.peer())}));
    parts_.metrics.uploads_in_flight.Increment();
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Take(RequestBytes bytes) override {
    ASSIGN_OR_RETURN(auto message, bytes.Read<v1::UploadGraphRequest>(kAsTransportAllows));
    if (message.has_header()) {
      v1::UploadHeader& header = *message.mutable_header();
      ASSIGN_OR_RETURN(const std::string tenant,
                       parts_.admission.TenantFor(caller_, header.tenant()));
      header.set_tenant(tenant);
      RETURN_IF_ERROR(CheckTenant(tenant));
      RETURN_IF_ERROR(TakeQuota(tenant, header.size()));
    }
    ASSIGN_OR_RETURN(const UploadSession::Next next, session_.Handle(message));
    response_.set_already_present(next == UploadSession::Next::kPresent);
    return next == UploadSession::Next::kMore;
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

  // A dead client and one that is done end the stream alike.
  absl::Status TakeEnd() override {
    if (stalled_) {
      return MakeError(Reason::kCancelled,
                       absl::StrCat("the upload stalled, or brought less than ",
                                    parts_.options.upload_rate_bytes, " bytes a second"));
    }
    if (context_.IsCancelled()) {
      return MakeError(Reason::kCancelled, "the caller went away during the upload");
    }
    return session_.Finish();
  }

  static UploadOutcome OutcomeOf(const absl::Status& status, bool already_present) {
    if (status.ok()) {
      return already_present ? UploadOutcome::kAlreadyPresent : UploadOutcome::kStored;
    }
    return status.code() == absl::StatusCode::kCancelled ? UploadOutcome::kAbandoned
                                                         : UploadOutcome::kRejected;
  }

  std::string Answer(const absl::Status& status) override {
    // What was right so far may go on when there is room again, or its sender is back.
    if (absl::IsResourceExhausted(status) || absl::IsCancelled(status)) session_.KeepRest();
    session_.Close();  // first: whoever hears of this end may ask again at once
    upload_ = {};
    const Digest& digest = session_.digest();
    response_.set_graph_digest(std::string(AsBytes(digest)));
    parts_.metrics.uploads(OutcomeOf(status, response_.already_present())).Increment();
    if (status.ok()) answer_ = ToBytes(response_);
    return absl::StrCat("graph=", ToHex(digest));
  }

  grpc::ByteBuffer& answer_;
  v1::UploadGraphResponse response_;
  Caller caller_;
  UploadSession session_;
  Quotas::Held upload_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* NewUploadReactor(const ServiceParts& parts,
                                                            grpc::CallbackServerContext* context,
                                                            grpc::ByteBuffer* response) {
  return new UploadReactor(parts, context, response);
}

}  // namespace bucketd
