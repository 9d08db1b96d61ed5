#include "gpu_agent/comm/endpoint.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/rand.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "gpu_agent/comm/rendezvous.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr absl::string_view kUnix = "unix:";
constexpr absl::string_view kTcp = "tcp:";
constexpr int kBacklog = 64;
constexpr int kBufferBytes = 4 << 20;  // asked for; the kernel's limit is below

// Any address, as the socket calls want it.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::Status SocketError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<Address> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path[0] != '/' || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("unix socket ", path,
                                                   ": expected an absolute path of at most ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  Address result{.storage = {}, .length = sizeof(address)};
  std::memcpy(&result.storage, &address, sizeof(address));
  return result;
}

absl::StatusOr<Address> TcpAddress(const std::string& host, int port) {
  Address result;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&result.storage, &v4, sizeof(v4));
    result.length = sizeof(v4);
    return result;
  }
  if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&result.storage, &v6, sizeof(v6));
    result.length = sizeof(v6);
    return result;
  }
  return absl::InvalidArgumentError(absl::StrCat(host, ": expected an IPv4 or IPv6 address"));
}

bool IsAny(const Address& address) {
  static constexpr in6_addr kAny6 = IN6ADDR_ANY_INIT;
  if (address.family() == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address.storage, sizeof(v4));
    return v4.sin_addr.s_addr == htonl(INADDR_ANY);
  }
  sockaddr_in6 v6;
  std::memcpy(&v6, &address.storage, sizeof(v6));
  return std::memcmp(&v6.sin6_addr, &kAny6, sizeof(kAny6)) == 0 ||
         IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

// Its numbers as text, of an IPv4 or IPv6 address.
std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof(v4));
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  } else {
    sockaddr_in6 v6;
    std::memcpy(&v6, address, sizeof(v6));
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  }
  return text;
}

// An address that an interface of this machine has.
struct Held {
  std::string interface, address;
  bool v4 = false;
};

absl::StatusOr<std::vector<Held>> HeldAddresses() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return SocketError("getifaddrs");
  std::vector<Held> held;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    held.push_back({one->ifa_name, TextOf(one->ifa_addr), family == AF_INET});
  }
  freeifaddrs(all);
  return held;
}

absl::StatusOr<Fd> NewSocket(int family) {
  Fd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return SocketError("socket");
  return fd;
}

// What a ring wants of a connection. All of it is advice: a socket without it works, slower.
void Tune(int fd, int family) {
  const int one = 1;
  if (family == AF_UNIX) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
    return;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

absl::Status CheckUser(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return SocketError("peer");
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("a connection of user ", peer.uid, ": expected user ", geteuid()));
}

absl::StatusOr<Address> Parse(const std::string& endpoint, bool tcp) {
  absl::string_view rest = endpoint;
  if (!tcp && absl::ConsumePrefix(&rest, kUnix)) return UnixAddress(std::string(rest));
  if (tcp && absl::ConsumePrefix(&rest, kTcp)) {
    const size_t colon = rest.rfind(':');
    int port = 0;
    if (colon != absl::string_view::npos && absl::SimpleAtoi(rest.substr(colon + 1), &port) &&
        port > 0 && port < 65536) {
      absl::string_view host = rest.substr(0, colon);
      if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
      return TcpAddress(std::string(host), port);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("endpoint ", absl::CEscape(endpoint),
                                                 ": expected ",
                                                 tcp ? "tcp:address:port" : "unix:/path"));
}

}  // namespace

absl::StatusOr<Listener> Listener::OnUnix(const std::string& folder, int rank) {
  RETURN_IF_ERROR(CheckPrivateFolder(folder));
  unsigned char random[8];
  if (RAND_bytes(random, sizeof(random)) != 1) return absl::InternalError("no random bytes");
  const std::string name(reinterpret_cast<const char*>(random), sizeof(random));
  const std::string path =
      absl::StrCat(folder, "/", rank, ".", absl::BytesToHexString(name), ".sock");
  ASSIGN_OR_RETURN(const Address address, UnixAddress(path));
  ASSIGN_OR_RETURN(Fd fd, NewSocket(AF_UNIX));
  // Before it has a name: at no time is there one that others could open.
  if (fchmod(fd.get(), 0600) != 0) return SocketError("fchmod");
  if (bind(fd.get(), address.raw(), address.length) != 0) return SocketError(path);
  Listener listener(std::move(fd), absl::StrCat(kUnix, path), path);
  if (listen(listener.fd(), kBacklog) != 0) return SocketError(path);
  return listener;
}

absl::StatusOr<Listener> Listener::OnTcp(const std::string& address) {
  ASSIGN_OR_RETURN(Address bound, TcpAddress(address, 0));
  if (IsAny(bound)) return absl::InvalidArgumentError(address + ": expected one interface's");
  ASSIGN_OR_RETURN(Fd fd, NewSocket(bound.family()));
  if (bind(fd.get(), bound.raw(), bound.length) != 0 || listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), bound.raw(), &bound.length) != 0) {
    return SocketError(address);
  }
  sockaddr_in with_port;  // both families have the port in one place
  std::memcpy(&with_port, &bound.storage, sizeof(with_port));
  const bool v4 = bound.family() == AF_INET;
  const std::string host = v4 ? address : absl::StrCat("[", address, "]");
  return Listener(std::move(fd), absl::StrCat(kTcp, host, ":", ntohs(with_port.sin_port)), "");
}

Listener::Listener(Fd fd, std::string endpoint, std::string path)
    : fd_(std::move(fd)), endpoint_(std::move(endpoint)), path_(std::move(path)) {}

// One that was moved from has no descriptor.
Listener::~Listener() {
  if (fd_ && !path_.empty()) unlink(path_.c_str());
}

absl::StatusOr<Fd> Listener::Accept() const {
  Fd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return absl::ResourceExhaustedError("no descriptor or memory for a connection");
    }
    return Fd();
  }
  if (!path_.empty()) RETURN_IF_ERROR(CheckUser(fd.get()));
  Tune(fd.get(), path_.empty() ? AF_INET : AF_UNIX);
  return fd;
}

absl::StatusOr<std::string> LocalAddress(const std::string& interface) {
  if (const auto address = TcpAddress(interface, 0); address.ok()) {
    if (!IsAny(*address)) return interface;
    return absl::InvalidArgumentError(absl::StrCat(
        interface, ": expected the address of one interface, not a link-local or mapped one"));
  }
  ASSIGN_OR_RETURN(const std::vector<Held> held, HeldAddresses());
  for (const bool v4 : {true, false}) {
    for (const Held& one : held) {
      if (one.v4 != v4 || one.interface != interface) continue;
      const auto address = TcpAddress(one.address, 0);
      if (address.ok() && !IsAny(*address)) return one.address;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(interface, ": expected an address or the name of an interface that has one"));
}

absl::StatusOr<std::string> InterfaceName(const std::string& interface) {
  ASSIGN_OR_RETURN(const std::string address, LocalAddress(interface));
  ASSIGN_OR_RETURN(const std::vector<Held> held, HeldAddresses());
  for (const Held& one : held) {
    if (one.address == address) return one.interface;
  }
  return absl::InvalidArgumentError(absl::StrCat(interface, ": no interface here has it"));
}

absl::StatusOr<Fd> Dial(const std::string& endpoint, const std::string& local_address) {
  const bool tcp = !local_address.empty();
  ASSIGN_OR_RETURN(const Address address, Parse(endpoint, tcp));
  ASSIGN_OR_RETURN(Fd fd, NewSocket(address.family()));
  if (tcp) {
    ASSIGN_OR_RETURN(const Address local, TcpAddress(local_address, 0));
    if (bind(fd.get(), local.raw(), local.length) != 0) return SocketError(local_address);
  }
  Tune(fd.get(), address.family());
  if (connect(fd.get(), address.raw(), address.length) != 0 && errno != EINPROGRESS) {
    return SocketError(endpoint);
  }
  if (!tcp) RETURN_IF_ERROR(CheckUser(fd.get()));
  return fd;
}

}  // namespace bucketd::agent
