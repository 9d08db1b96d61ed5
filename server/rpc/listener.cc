#include "server/rpc/listener.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/resource_quota.h"
#include "spdlog/spdlog.h"
#include <grpc/compression.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "passes/base/status_macros.h"
#include "server/rpc/mutual_tls.h"

namespace bucketd {
namespace {

// While set, gRPC's errors are told by whoever runs into them, in better words.
thread_local bool grpc_errors_are_told = false;

void LogOfGrpc(gpr_log_func_args* args) {
  const bool warn = args->severity == GPR_LOG_SEVERITY_ERROR && !grpc_errors_are_told;
  spdlog::log(warn ? spdlog::level::warn : spdlog::level::debug, "grpc: {}", args->message);
}

// It writes to stderr by itself, a line for each field of a caller's that is no UTF-8.
void LogOfProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  const bool warn = level >= google::protobuf::LOGLEVEL_ERROR;
  spdlog::log(warn ? spdlog::level::warn : spdlog::level::debug, "protobuf: {}", message);
}

// Whoever holds on to an old connection is asked for his certificate in the end. Calls that are
// under way then have as long as any may take.
void BoundAge(grpc::ServerBuilder& builder, const ServerOptions& options) {
  const auto longest = std::max(options.max_wait, options.upload_deadline);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             static_cast<int>(options.tls.connection_age.count()));
  builder.AddChannelArgument(
      GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
      static_cast<int>(std::min<int64_t>(longest.count(), std::numeric_limits<int>::max())));
}

// Else ranks that came through a replica behind a silent link stay present until their deadline:
// the other end of that link has found out by its own pings, and presents them anew.
void NoticeSilence(grpc::ServerBuilder& builder, const Pings& pings) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(pings.every.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(pings.timeout.count()));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

int64_t MessageBytes(const ServerOptions& options) {
  return options.max_in_flight_bytes - options.intake.max_upload_bytes;
}

int64_t MostConnections(const ServerOptions& options) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return options.max_connections;
  constexpr rlim_t kForOthers = 256;
  const rlim_t most = files.rlim_cur - std::min(files.rlim_cur / 4, kForOthers);
  return static_cast<int64_t>(std::min<rlim_t>(most, static_cast<rlim_t>(options.max_connections)));
}

// Whether a server answers on the socket: taking its path away would leave it deaf.
bool SomebodyListens(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const bool answered =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return answered;
}

absl::Status PrepareSocket(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return absl::OkStatus();
  if (!S_ISSOCK(status.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat("--listen: ", path, " exists and is no socket"));
  }
  if (SomebodyListens(path)) {
    return absl::UnavailableError(absl::StrCat("--listen: another server is listening on ", path));
  }
  unlink(path.c_str());  // left behind by a server that died
  return absl::OkStatus();
}

}  // namespace

void LogLibraries() {
  gpr_set_log_function(LogOfGrpc);
  google::protobuf::SetLogHandler(LogOfProtobuf);
}

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const Trust* trust,
                                                       const TlsOptions& options) {
  if (trust == nullptr) return grpc::InsecureServerCredentials();
  const ClientCertificates wanted = !options.accept_tokens           ? ClientCertificates::kRequired
                                    : options.client_ca_file.empty() ? ClientCertificates::kNotAsked
                                                                     : ClientCertificates::kWelcome;
  return MutualTls(wanted, [trust] { return trust->files(); });
}

int64_t HalfOfMessages(const ServerOptions& options) { return MessageBytes(options) / 2; }

ConnectionLimits LimitsOf(const ServerOptions& options) {
  return {std::make_shared<ByteRoom>(HalfOfMessages(options)), MostConnections(options),
          2 * int64_t{options.max_streams}};
}

void BoundTransport(grpc::ServerBuilder& builder, const ServerOptions& options,
                    const Pings& pings) {
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  // Else its streams have windows of 4 MiB, and what comes behind a call's message is not read.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // gRPC inflates a message before it looks at its size. Graphs have a codec of their own.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET,
                             1 << GRPC_COMPRESS_NONE);
  grpc::ResourceQuota quota("bucketd");
  quota.Resize(static_cast<size_t>(MessageBytes(options)));
  builder.SetResourceQuota(quota);
  if (options.tls.on()) BoundAge(builder, options);
  if (!options.cluster_address.empty()) NoticeSilence(builder, pings);
}

absl::Status StartAt(const ServerOptions& options, grpc::ServerBuilder& builder,
                     const std::shared_ptr<grpc::ServerCredentials>& credentials,
                     std::unique_ptr<grpc::Server>& server, std::string& address) {
  const bool is_unix = IsUnixAddress(options.listen);
  if (is_unix) RETURN_IF_ERROR(PrepareSocket(options.listen.substr(5)));
  int port = 0;
  builder.AddListeningPort(options.listen, credentials, &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, options.reuse_port ? 1 : 0);
  // The socket is never open wider than it will be, not even between bind and chmod.
  const mode_t mask = umask(static_cast<mode_t>(~options.socket_mode & 0777));
  grpc_errors_are_told = true;
  server = builder.BuildAndStart();
  grpc_errors_are_told = false;
  umask(mask);
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("--listen: cannot listen on ", options.listen,
                     is_unix ? "; does the folder exist, and may we write to it?"
                             : "; is the port taken, and is the host one of this machine's?"));
  }
  address = is_unix ? options.listen
                    : absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port);
  return absl::OkStatus();
}

}  // namespace bucketd
