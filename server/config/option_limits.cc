// Which values of options are possible, each by itself and beside the others.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include <arpa/inet.h>
#include <sys/un.h>

#include "server/config/options.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;
constexpr int64_t kLeastForMessages = int64_t{64} << 20;

// "" if the value is in range.
struct RangeChecker {
  const OptionRow& row;

  std::string Range(double value, const std::string& printed) const {
    if (value < static_cast<double>(row.least)) {
      return absl::StrCat(printed, " is too small, at least ", row.least, " is needed");
    }
    if (value > static_cast<double>(row.most)) {
      return absl::StrCat(printed, " is too large, at most ", row.most, " is possible");
    }
    return "";
  }
  std::string operator()(const std::string* value) const {
    const std::vector<std::string> known = absl::StrSplit(row.choices, '|', absl::SkipEmpty());
    if (known.empty() || std::find(known.begin(), known.end(), *value) != known.end()) return "";
    return absl::StrCat("\"", *value, "\" is unknown; known are ", absl::StrJoin(known, ", "));
  }
  std::string operator()(const bool*) const { return ""; }
  template <typename Integer>
  std::string operator()(const Integer* value) const {
    return Range(static_cast<double>(*value), absl::StrCat(*value));
  }
  std::string operator()(const milliseconds* value) const {
    const int64_t unit = MillisecondsIn(row);
    const double said = static_cast<double>(value->count()) / static_cast<double>(unit);
    return Range(said, unit == 1 ? absl::StrCat(value->count()) : absl::StrCat(said));
  }
  std::string operator()(OctalField field) const {
    const bool in_range = *field.value >= 0 && *field.value <= 0777;
    return in_range ? "" : "expected three octal digits, e.g. 600";
  }
};

std::string HostPortProblem(const std::string& address, bool may_be_reached,
                            absl::string_view remedy) {
  const size_t colon = address.rfind(':');
  int32_t port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::StrCat("\"", address, "\" is no address; expected HOST:PORT, e.g. 127.0.0.1:0");
  }
  if (may_be_reached || IsLoopback(address)) return "";
  return absl::StrCat(address, " can be reached from other machines, without TLS; ", remedy,
                      "say --insecure if the network is trusted, or listen on 127.0.0.1");
}

std::string ListenProblem(const ServerOptions& options) {
  if (!IsUnixAddress(options.listen)) {
    return HostPortProblem(options.listen, options.insecure || options.tls.on(),
                           "name the files of --tls-certificate-file and its kin, ");
  }
  const std::string path = options.listen.substr(5);
  if (options.tls.on()) {
    return "a unix socket has no TLS: its permissions say who may connect (--socket-mode)";
  }
  if (path.empty() || path[0] != '/') {
    return absl::StrCat("\"", options.listen, "\": expected an absolute path after unix:");
  }
  if (path.size() <= kMaxSocketPath) return "";
  return absl::StrCat("a socket path has at most ", kMaxSocketPath, " bytes, this one has ",
                      path.size(), ": ", path);
}

// Several servers of one machine may have sockets.
std::string ClusterProblem(const ServerOptions& options) {
  const std::string& address = options.cluster_address;
  if (address.empty()) return "";
  if (options.store_dir.empty()) return "replicas share a store: say --store or --store-dir";
  if (options.tls.on() && options.tls.client_ca_file.empty()) {
    return "with TLS, replicas know each other by certificates: say --tls-client-ca-file";
  }
  if (IsUnixAddress(address)) return "";
  const std::string problem = HostPortProblem(address, true, "");
  if (!problem.empty() || !absl::EndsWith(address, ":0")) return problem;
  return "others cannot call port 0: name the port of --listen";
}

std::string UploadBytesProblem(const GraphIntakeLimits& limits) {
  if (limits.max_upload_bytes >= limits.max_graph_bytes) return "";
  return absl::StrCat(limits.max_upload_bytes,
                      " is too small: one graph may have max_graph_bytes, ",
                      limits.max_graph_bytes);
}

std::string InFlightProblem(const ServerOptions& options) {
  const int64_t least = options.intake.max_upload_bytes + kLeastForMessages;
  if (options.max_in_flight_bytes >= least) return "";
  return absl::StrCat(options.max_in_flight_bytes, " is too small: at least ", least,
                      " are needed, max_upload_bytes and 64 MiB for messages");
}

}  // namespace

absl::Status ServerOptions::Validate(const PlaceOf& place_of) const {
  std::vector<std::string> problems;
  const auto add = [&](absl::string_view name, const std::string& problem) {
    if (problem.empty()) return;
    const std::string place = place_of == nullptr ? absl::StrCat("--", name) : place_of(name);
    problems.push_back(absl::StrCat(place, ": ", problem));
  };
  for (const OptionRow& row : OptionTable()) {
    add(row.name, std::visit(RangeChecker{row}, row.field(const_cast<ServerOptions&>(*this))));
  }
  add("listen", ListenProblem(*this));
  // decisions/0002-the-side-port-stays-without-tls.md
  if (!http.empty()) add("http", HostPortProblem(http, insecure, ""));
  for (const auto& [name, file] : {std::pair("tls-certificate-file", &tls.certificate_file),
                                   {"tls-key-file", &tls.key_file},
                                   {"tls-client-ca-file", &tls.client_ca_file},
                                   {"identities-file", &tls.identities_file}}) {
    const bool may_be_left_out = file == &tls.client_ca_file && tls.accept_tokens;
    if (file->empty() && tls.on() && !may_be_left_out) {
      add(name,
          "is missing: TLS needs a certificate, its key, the callers' authorities and the "
          "identities file");
    }
  }
  add("cluster-address", ClusterProblem(*this));
  add("max-upload-bytes", UploadBytesProblem(intake));
  add("max-in-flight-bytes", InFlightProblem(*this));
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

bool IsDatabase(const std::string& store) { return absl::StrContains(store, "://"); }

bool IsUnixAddress(const std::string& address) { return absl::StartsWith(address, "unix:"); }

bool IsLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  in_addr number{};  // a name that begins with 127. may be of any machine
  return host == "localhost" || host == "[::1]" ||
         (inet_pton(AF_INET, host.c_str(), &number) == 1 && ntohl(number.s_addr) >> 24 == 127);
}

}  // namespace bucketd
