#include "server/base/errors.h"

#include <array>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

#include "proto/error.pb.h"
#include "server/base/named.h"

namespace bucketd {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr int32_t kOverloadedRetryNanos = 200'000'000;
constexpr int32_t kDrainingRetryNanos = 500'000'000;

struct Row {
  Reason reason;
  absl::StatusCode code;
  const char* name;
};

constexpr std::array<Row, static_cast<size_t>(Reason::kPlannerBug) + 1> kTable = {{
    {Reason::kDigestMalformed, absl::StatusCode::kInvalidArgument, "DIGEST_MALFORMED"},
    {Reason::kDigestMismatch, absl::StatusCode::kInvalidArgument, "DIGEST_MISMATCH"},
    {Reason::kContentMismatch, absl::StatusCode::kInvalidArgument, "CONTENT_MISMATCH"},
    {Reason::kGraphMalformed, absl::StatusCode::kInvalidArgument, "GRAPH_MALFORMED"},
    {Reason::kGraphTooLarge, absl::StatusCode::kResourceExhausted, "GRAPH_TOO_LARGE"},
    {Reason::kChunkTooLarge, absl::StatusCode::kInvalidArgument, "CHUNK_TOO_LARGE"},
    {Reason::kUploadProtocol, absl::StatusCode::kInvalidArgument, "UPLOAD_PROTOCOL"},
    {Reason::kCodecUnknown, absl::StatusCode::kInvalidArgument, "CODEC_UNKNOWN"},
    {Reason::kRequestMalformed, absl::StatusCode::kInvalidArgument, "REQUEST_MALFORMED"},
    {Reason::kRequestTooLarge, absl::StatusCode::kInvalidArgument, "REQUEST_TOO_LARGE"},
    {Reason::kOptionsInvalid, absl::StatusCode::kInvalidArgument, "OPTIONS_INVALID"},
    {Reason::kMeshInvalid, absl::StatusCode::kInvalidArgument, "MESH_INVALID"},
    {Reason::kProfileUnknown, absl::StatusCode::kNotFound, "PROFILE_UNKNOWN"},
    {Reason::kProfileInvalid, absl::StatusCode::kInvalidArgument, "PROFILE_INVALID"},
    {Reason::kProfileUnreadable, absl::StatusCode::kDataLoss, "PROFILE_UNREADABLE"},
    {Reason::kProfileLimit, absl::StatusCode::kResourceExhausted, "PROFILE_LIMIT"},
    {Reason::kNoEarlierVersion, absl::StatusCode::kFailedPrecondition, "NO_EARLIER_VERSION"},
    {Reason::kNoSamples, absl::StatusCode::kFailedPrecondition, "NO_SAMPLES"},
    {Reason::kStoreUnavailable, absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE"},
    {Reason::kPlanNotCached, absl::StatusCode::kNotFound, "PLAN_NOT_CACHED"},
    {Reason::kPlanImpossible, absl::StatusCode::kFailedPrecondition, "PLAN_IMPOSSIBLE"},
    {Reason::kDeadline, absl::StatusCode::kDeadlineExceeded, "DEADLINE"},
    {Reason::kCancelled, absl::StatusCode::kCancelled, "CANCELLED"},
    {Reason::kOverloaded, absl::StatusCode::kResourceExhausted, "OVERLOADED"},
    {Reason::kQuotaUsedUp, absl::StatusCode::kResourceExhausted, "QUOTA_USED_UP"},
    {Reason::kDraining, absl::StatusCode::kUnavailable, "DRAINING"},
    {Reason::kClientTooOld, absl::StatusCode::kFailedPrecondition, "CLIENT_TOO_OLD"},
    {Reason::kPlanningDisabled, absl::StatusCode::kFailedPrecondition, "PLANNING_DISABLED"},
    {Reason::kAdminNotAllowed, absl::StatusCode::kPermissionDenied, "ADMIN_NOT_ALLOWED"},
    {Reason::kCallerUnknown, absl::StatusCode::kUnauthenticated, "CALLER_UNKNOWN"},
    {Reason::kRoleMissing, absl::StatusCode::kPermissionDenied, "ROLE_MISSING"},
    {Reason::kTenantDiffers, absl::StatusCode::kPermissionDenied, "TENANT_DIFFERS"},
    {Reason::kJobInvalid, absl::StatusCode::kInvalidArgument, "JOB_INVALID"},
    {Reason::kRanksDiffer, absl::StatusCode::kFailedPrecondition, "RANKS_DIFFER"},
    {Reason::kRanksMissing, absl::StatusCode::kDeadlineExceeded, "RANKS_MISSING"},
    {Reason::kGenerationOver, absl::StatusCode::kFailedPrecondition, "GENERATION_OVER"},
    {Reason::kRendezvousDiffers, absl::StatusCode::kFailedPrecondition, "RENDEZVOUS_DIFFERS"},
    {Reason::kEpochUnknown, absl::StatusCode::kNotFound, "EPOCH_UNKNOWN"},
    {Reason::kPlannerBug, absl::StatusCode::kInternal, "PLANNER_BUG"},
}};
static_assert(IsByPosition(kTable, &Row::reason));

// A status travels in HTTP/2 headers, twice (text and details), and those are small.
constexpr size_t kMaxMessageBytes = 1500;

const Row& Find(Reason reason) { return kTable[static_cast<size_t>(reason)]; }

template <typename Message>
absl::optional<Message> Payload(const absl::Status& status, absl::string_view url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  Message message;
  if (!payload.has_value() || !message.ParseFromString(std::string(*payload))) return {};
  return message;
}

}  // namespace

std::string Clip(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<uint8_t>(text[most]) & 0xC0) == 0x80) --most;
  return absl::StrCat(text.substr(0, most), " ...");
}

absl::string_view ReasonName(Reason reason) { return Find(reason).name; }

absl::Status MakeError(Reason reason, absl::string_view message, const ErrorFields& fields) {
  google::rpc::ErrorInfo info;
  info.set_reason(Find(reason).name);
  info.set_domain("bucketd");
  auto& metadata = *info.mutable_metadata();
  if (fields.limit >= 0) metadata["limit"] = absl::StrCat(fields.limit);
  if (fields.actual >= 0) metadata["actual"] = absl::StrCat(fields.actual);
  if (!fields.node.empty()) metadata["node"] = fields.node;

  absl::Status status(Find(reason).code, Clip(message, kMaxMessageBytes));
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  const bool passes = reason == Reason::kQuotaUsedUp && !fields.lasting;
  if (passes || reason == Reason::kOverloaded || reason == Reason::kDraining) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_nanos(reason == Reason::kDraining ? kDrainingRetryNanos
                                                                       : kOverloadedRetryNanos);
    status.SetPayload(kRetryInfoUrl, absl::Cord(retry.SerializeAsString()));
  }
  return status;
}

absl::Status DrainingError() { return MakeError(Reason::kDraining, "the server is shutting down"); }

absl::Status CallerGone() { return MakeError(Reason::kCancelled, "the caller went away"); }

absl::Status WithReason(Reason reason, const absl::Status& status) {
  return MakeError(reason, status.message());
}

std::string ReasonOf(const absl::Status& status) {
  const auto info = Payload<google::rpc::ErrorInfo>(status, kErrorInfoUrl);
  return info.has_value() ? info->reason() : std::string();
}

std::string SerializeRpcStatus(const absl::Status& status) {
  google::rpc::Status message;
  message.set_code(static_cast<int>(status.code()));
  message.set_message(std::string(status.message()));
  for (const char* url : {kErrorInfoUrl, kRetryInfoUrl}) {
    const absl::optional<absl::Cord> payload = status.GetPayload(url);
    if (!payload.has_value()) continue;
    google::protobuf::Any& detail = *message.add_details();
    detail.set_type_url(url);
    detail.set_value(std::string(*payload));
  }
  return message.SerializeAsString();
}

absl::Status ParseRpcStatus(absl::string_view bytes) {
  google::rpc::Status message;
  if (!message.ParseFromString(std::string(bytes)) || message.code() == 0) {
    return MakeError(Reason::kPlannerBug, "an error that cannot be read");
  }
  absl::Status status(static_cast<absl::StatusCode>(message.code()), message.message());
  for (const google::protobuf::Any& detail : message.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

}  // namespace bucketd
