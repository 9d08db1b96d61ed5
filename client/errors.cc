#include "client/errors.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

#include "proto/error.pb.h"

namespace bucketd::client {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
// A server that asks for none is not called without pause.
constexpr std::chrono::milliseconds kLeastPause{50};

// False if there is none, or none that can be read.
template <typename Message>
bool Payload(const absl::Status& status, absl::string_view url, Message& message) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  return payload.has_value() && message.ParseFromString(std::string(*payload));
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("bucketd");
  absl::Status status(code, absl::StrCat(reason, ": ", message));
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return Payload(status, kErrorInfoUrl, info) ? info.reason() : std::string();
}

std::optional<std::chrono::milliseconds> RetryAfter(const absl::Status& status) {
  google::rpc::RetryInfo info;
  if (!Payload(status, kRetryInfoUrl, info)) return std::nullopt;
  const int64_t seconds = std::clamp<int64_t>(info.retry_delay().seconds(), 0, 24 * 3600);
  const int64_t millis = seconds * 1000 + info.retry_delay().nanos() / 1'000'000;
  return std::max(kLeastPause, std::chrono::milliseconds(millis));
}

void AddDetails(absl::string_view serialized, absl::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromArray(serialized.data(), static_cast<int>(serialized.size()))) return;
  for (const google::protobuf::Any& detail : details.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
}

}  // namespace bucketd::client
