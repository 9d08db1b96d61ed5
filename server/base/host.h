// Where a call comes from, for what is shared among those who call: places, budgets, votes.
//
// A machine on IPv6 has a network of its own, and takes as many addresses of it as it likes: the
// first 64 bits are its host. Machines of one link are then one host; where they are to count
// apart, callers have names.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include <sys/socket.h>

namespace bucketd {

// Of a peer as gRPC names it ("ipv4:10.0.0.7:4711", "ipv6:[2001:db8::7]:4711", with or without
// %5B for brackets, "unix:..."): "ipv4:10.0.0.7", also where it is mapped into IPv6,
// "ipv6:[2001:db8::]", "unix". A host's host is itself. Whoever comes back comes from another port.
std::string HostOf(absl::string_view peer);
// The same of a socket's address; "" for what is no internet address.
std::string HostOf(const sockaddr_storage& address);

// The whole address, for people who look for a machine.
inline std::string AddressOf(absl::string_view peer) {
  return std::string(peer.substr(0, peer.rfind(':')));
}

}  // namespace bucketd
