#include "client/channel.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/errors.h"
#include "client/token_file.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/support/channel_arguments.h"
#include <grpc/impl/codegen/grpc_types.h>

namespace bucketd::client {
namespace {

constexpr char kRetryPolicy[] =
    R"(, "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s",)"
    R"( "backoffMultiplier": 2.5, "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"]})";

std::string Name(absl::string_view what) {
  const std::vector<absl::string_view> parts = absl::StrSplit(what, absl::MaxSplits('/', 1));
  std::string name = absl::StrCat(R"({"service": ")", parts[0], "\"");
  if (parts.size() > 1) absl::StrAppend(&name, R"(, "method": ")", parts[1], "\"");
  return name + "}";
}

std::string MethodConfig(const std::vector<std::string>& names, absl::string_view policy) {
  const auto append = [](std::string* out, const std::string& name) { out->append(Name(name)); };
  return absl::StrCat(R"({"name": [)", absl::StrJoin(names, ", ", append), "]", policy, "}");
}

constexpr unsigned kLookAtFilesSeconds = 5;

// gRPC asks it at each call, and never for one over a connection without TLS.
class TokenOfCalls final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenOfCalls(std::string path) : file_(std::move(path)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    const absl::StatusOr<std::string> token = file_.Get();
    if (!token.ok()) {
      return {grpc::StatusCode::UNAVAILABLE, std::string(token.status().message())};
    }
    metadata->emplace("authorization", absl::StrCat("Bearer ", *token));
    return grpc::Status::OK;
  }

 private:
  TokenFile file_;
};

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::string& address,
                                                         const ChannelOptions& options) {
  if (absl::StartsWith(address, "unix:")) return grpc::InsecureChannelCredentials();
  return options.credentials != nullptr ? options.credentials : MakeCredentials(options.tls);
}

// "" where the server itself gave none.
std::string ReasonOf(const grpc::Status& status) {
  absl::Status details(absl::StatusCode::kUnknown, "");
  AddDetails(status.error_details(), details);
  return client::ReasonOf(details);
}

}  // namespace

// A new key that is seen beside the old certificate fails one attempt to connect; the next look
// finds both.
std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const ClientTls& tls) {
  if (!tls.on()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  const bool own = tls.with_certificate();
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          own ? tls.key : "", own ? tls.certificate : "", tls.ca, kLookAtFilesSeconds));
  options.watch_root_certs();
  if (own) options.watch_identity_key_cert_pairs();
  const auto credentials = grpc::experimental::TlsCredentials(options);
  if (tls.token.empty()) return credentials;
  return grpc::CompositeChannelCredentials(
      credentials, grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenOfCalls>(tls.token)));
}

std::string ServiceConfig(const ChannelOptions& options) {
  std::vector<std::string> methods;
  if (!options.retried.empty()) methods.push_back(MethodConfig(options.retried, kRetryPolicy));
  if (!options.not_retried.empty()) methods.push_back(MethodConfig(options.not_retried, ""));
  return absl::StrCat(R"({"methodConfig": [)", absl::StrJoin(methods, ", "), "]}");
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(ServiceConfig(options));
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name: how long an attempt to connect may take, the server's first frame included.
  // A server that is busy has that long; one whose host is gone costs no more.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!options.server_name.empty()) arguments.SetSslTargetNameOverride(options.server_name);
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);  // a plan of a large graph; the service bounds its size
  return grpc::CreateCustomChannel(address, CredentialsFor(address, options), arguments);
}

bool IsGone(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

bool IsAnswer(const grpc::Status& status) {
  return !ReasonOf(status).empty() ||
         (!IsGone(status) && status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED);
}

bool IsStanding(const grpc::Status& status) {
  return IsAnswer(status) && ReasonOf(status) != "DRAINING";
}

absl::Status FromRpc(const grpc::Status& status, absl::string_view where) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (const std::string reason = ReasonOf(status); !reason.empty()) {
    absl::Status named(code, absl::StrCat(reason, ": ", status.error_message()));
    AddDetails(status.error_details(), named);
    return named;
  }
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return MakeError(code, kDeadline, absl::StrCat("no answer in time from ", where));
  }
  const std::string message = absl::StrCat(where, ": ", status.error_message());
  if (IsGone(status)) return MakeError(absl::StatusCode::kUnavailable, kUnreachable, message);
  return MakeError(code, kProtocol, message);
}

}  // namespace bucketd::client
