#include "client/addresses.h"

#include <netdb.h>

#include <algorithm>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/errors.h"
#include <arpa/inet.h>
#include <sys/socket.h>

#include "passes/base/digest.h"

namespace bucketd::client {
namespace {

constexpr char kDns[] = "dns:///";
constexpr char kUnix[] = "unix:";

struct HostPort {
  std::string host;  // without brackets
  std::string port;
};

bool IsPort(absl::string_view text) {
  int port = 0;
  const bool digits = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  return digits && text.size() <= 5 && absl::SimpleAtoi(text, &port) && port > 0 && port < 65536;
}

// False if `text` is not HOST:PORT or [NUMBERS]:PORT.
bool Split(absl::string_view text, HostPort& out) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || !IsPort(text.substr(colon + 1))) return false;
  absl::string_view host = text.substr(0, colon);
  out.port = std::string(text.substr(colon + 1));
  const bool numbers = absl::ConsumePrefix(&host, "[");
  if (numbers && !absl::ConsumeSuffix(&host, "]")) return false;
  out.host = std::string(host);
  const auto stands = [numbers](char c) {
    const auto byte = static_cast<unsigned char>(c);
    if (numbers) return absl::ascii_isalnum(byte) || c == ':' || c == '.' || c == '%' || c == '_';
    return !absl::ascii_isspace(byte) && !absl::StrContains(":/,[]", absl::string_view(&c, 1));
  };
  return !host.empty() && std::all_of(host.begin(), host.end(), stands);
}

bool IsAddress(absl::string_view address) {
  if (absl::ConsumePrefix(&address, kUnix)) return !address.empty();
  absl::ConsumePrefix(&address, kDns);
  HostPort parts;
  return Split(address, parts);
}

struct Found {
  int error = 0;
  std::set<std::string> targets;
};

Found Resolve(const HostPort& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  Found found{.error = getaddrinfo(name.host.c_str(), name.port.c_str(), &hints, &list),
              .targets = {}};
  if (found.error != 0) return found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    std::array<char, NI_MAXHOST> number{};
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, number.data(), number.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    const bool six = entry->ai_family == AF_INET6;
    found.targets.insert(absl::StrCat(six ? "[" : "", number.data(), six ? "]:" : ":", name.port));
  }
  freeaddrinfo(list);
  return found;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text) {
  std::vector<std::string> found;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::string address(absl::StripAsciiWhitespace(entry));
    const std::string within = address == text ? std::string() : absl::StrCat(" in \"", text, "\"");
    if (!IsAddress(address)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", address, "\"", within,
                       " is no address of a server; expected HOST:PORT, unix:/path, "
                       "dns:///NAME:PORT, or several of them with commas between"));
    }
    if (std::find(found.begin(), found.end(), address) != found.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", address, "\" is twice in \"", text, "\""));
    }
    found.push_back(address);
  }
  return found;
}

std::string WrongInAddresses(const std::string& text) {
  return std::string(ParseAddresses(text).status().message());
}

bool IsName(absl::string_view address) { return absl::StartsWith(address, kDns); }

absl::StatusOr<std::vector<ServerAddress>> LookUp(const std::string& address,
                                                  std::chrono::milliseconds patience) {
  HostPort name;
  Split(absl::StripPrefix(address, kDns), name);
  const auto answer = std::make_shared<std::promise<Found>>();
  std::future<Found> future = answer->get_future();
  // Nothing can interrupt it, so it may outlive this call.
  std::thread([answer, name] { answer->set_value(Resolve(name)); }).detach();
  std::string why = "no answer in time";
  if (future.wait_for(patience) == std::future_status::ready) {
    const Found found = future.get();
    std::vector<ServerAddress> servers;
    for (const std::string& target : found.targets) servers.push_back({target, name.host});
    if (!servers.empty()) return servers;
    why = gai_strerror(found.error);
  }
  return MakeError(absl::StatusCode::kUnavailable, kUnreachable,
                   absl::StrCat(address, ": the name is not known: ", why));
}

std::vector<ServerAddress> InOrder(std::vector<ServerAddress> servers, absl::string_view about) {
  if (about.empty()) return servers;
  const auto weight = [about](const ServerAddress& server) {
    return Sha256(absl::StrCat(about, "\n", server.target));
  };
  std::sort(servers.begin(), servers.end(),
            [&](const ServerAddress& a, const ServerAddress& b) { return weight(a) > weight(b); });
  return servers;
}

}  // namespace bucketd::client
