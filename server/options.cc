#include "server/options.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include <sys/un.h>

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

absl::Status AtLeast(const char* flag, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": ", value, " is too small, at least ", least, " is needed"));
}

absl::Status CheckHostPort(const char* flag, const std::string& address, bool insecure) {
  const size_t colon = address.rfind(':');
  int32_t port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, ": \"", address, "\" is no address; expected HOST:PORT, e.g. 127.0.0.1:0"));
  }
  if (!insecure && !IsLoopback(address)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, ": ", address,
        " can be reached from other machines and there is no TLS yet; say --insecure if the network"
        " is trusted, or listen on 127.0.0.1 or unix:/path"));
  }
  return absl::OkStatus();
}

absl::Status CheckListen(const ServerOptions& options) {
  if (!IsUnixAddress(options.listen)) {
    return CheckHostPort("listen", options.listen, options.insecure);
  }
  const std::string path = options.listen.substr(5);
  if (path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: \"", options.listen, "\": expected an absolute path after unix:"));
  }
  if (path.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: a socket path has at most ",
                                                   kMaxSocketPath, " bytes, this one has ",
                                                   path.size(), ": ", path));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsUnixAddress(const std::string& address) { return absl::StartsWith(address, "unix:"); }

bool IsLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::Status ServerOptions::Validate() const {
  RETURN_IF_ERROR(CheckListen(*this));
  if (!http.empty()) RETURN_IF_ERROR(CheckHostPort("http", http, insecure));
  if (socket_mode < 0 || socket_mode > 0777) {
    return absl::InvalidArgumentError("--socket-mode: expected three octal digits, e.g. 600");
  }
  RETURN_IF_ERROR(AtLeast("max-graph-bytes", intake.max_graph_bytes, 1));
  RETURN_IF_ERROR(AtLeast("max-graph-nodes", intake.max_graph_nodes, 1));
  RETURN_IF_ERROR(AtLeast("max-inline-bytes", intake.max_inline_bytes, 0));
  RETURN_IF_ERROR(AtLeast("max-chunk-bytes", intake.max_chunk_bytes, 1));
  RETURN_IF_ERROR(AtLeast("max-compression-ratio", intake.max_compression_ratio, 1));
  RETURN_IF_ERROR(AtLeast("max-upload-bytes", intake.max_upload_bytes, intake.max_graph_bytes));
  RETURN_IF_ERROR(AtLeast("max-uploads", intake.max_uploads, 1));
  RETURN_IF_ERROR(AtLeast("upload-threads", upload_threads, 1));
  RETURN_IF_ERROR(AtLeast("compute-slots", compute_slots, 0));
  RETURN_IF_ERROR(AtLeast("compute-queue", compute_queue, 0));
  RETURN_IF_ERROR(AtLeast("max-waiting", max_waiting, 1));
  RETURN_IF_ERROR(AtLeast("plan-cache-bytes", plan_cache_bytes, 0));
  RETURN_IF_ERROR(AtLeast("graph-cache-bytes", graph_cache_bytes, 0));
  RETURN_IF_ERROR(AtLeast("upload-lease-ms", upload_lease.count(), 1));
  RETURN_IF_ERROR(AtLeast("upload-stall-ms", upload_stall.count(), 1));
  RETURN_IF_ERROR(AtLeast("upload-resume-ms", upload_resume.count(), 0));
  RETURN_IF_ERROR(AtLeast("drain-seconds", drain.count(), 0));
  RETURN_IF_ERROR(AtLeast("lame-duck-ms", lame_duck.count(), 0));
  return absl::OkStatus();
}

}  // namespace bucketd
