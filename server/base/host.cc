#include "server/base/host.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <arpa/inet.h>
#include <netinet/in.h>

namespace bucketd {
namespace {

constexpr size_t kNetworkBytes = 8;

std::string HostOfV4(const void* address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, address, text.data(), text.size());
  return absl::StrCat("ipv4:", text.data());
}

std::string HostOfV6(in6_addr address) {
  if (IN6_IS_ADDR_V4MAPPED(&address)) return HostOfV4(&address.s6_addr[12]);
  std::fill(std::begin(address.s6_addr) + kNetworkBytes, std::end(address.s6_addr), 0);
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, &address, text.data(), text.size());
  return absl::StrCat("ipv6:[", text.data(), "]");
}

}  // namespace

std::string HostOf(absl::string_view peer) {
  absl::string_view rest = peer;
  if (absl::ConsumePrefix(&rest, "ipv6:")) {
    if (!absl::ConsumePrefix(&rest, "[")) absl::ConsumePrefix(&rest, "%5B");
    // Up to the closing bracket, escaped or not, or the zone ("%eth0").
    const std::string text(rest.substr(0, rest.find_first_of("]%")));
    in6_addr address{};
    if (inet_pton(AF_INET6, text.c_str(), &address) == 1) return HostOfV6(address);
  } else if (absl::ConsumePrefix(&rest, "ipv4:")) {
    return std::string(peer.substr(0, peer.find(':', peer.size() - rest.size())));
  }
  return AddressOf(peer);
}

std::string HostOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return HostOfV4(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.ss_family != AF_INET6) return "";
  return HostOfV6(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace bucketd
