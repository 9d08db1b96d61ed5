// Where a rank listens and how its neighbour dials there: "unix:/folder/1.3f9c.sock" or
// "tcp:10.0.0.1:4242", "tcp:[fd00::1]:4242". All sockets are non-blocking.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/comm/socket.h"

namespace bucketd::agent {

// A listening socket; a unix one takes its file away with it.
class Listener {
 public:
  // A socket of mode 0600 in `folder`, which has to pass CheckPrivateFolder.
  static absl::StatusOr<Listener> OnUnix(const std::string& folder, int rank);
  // On a free port of that address alone; `address` is one of LocalAddress.
  static absl::StatusOr<Listener> OnTcp(const std::string& address);

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  const std::string& endpoint() const { return endpoint_; }
  int fd() const { return fd_.get(); }
  // A connection, or none if nobody waits. PERMISSION_DENIED: a unix one of another user, which is
  // closed; RESOURCE_EXHAUSTED: no descriptor is left.
  absl::StatusOr<Fd> Accept() const;

 private:
  Listener(Fd fd, std::string endpoint, std::string path);

  Fd fd_;
  std::string endpoint_;
  std::string path_;
};

// The address of "eth0" (its first, IPv4 before IPv6) or "10.0.0.1" itself. INVALID_ARGUMENT for
// what is neither, and for addresses that stand for every interface.
absl::StatusOr<std::string> LocalAddress(const std::string& interface);
// "eth0" of "10.0.0.1", or of itself. INVALID_ARGUMENT as above.
absl::StatusOr<std::string> InterfaceName(const std::string& interface);

// Begins to connect; poll tells. A TCP connection leaves from `local_address`. INVALID_ARGUMENT for
// text that is no endpoint of this transport ("" for unix), UNAVAILABLE if nobody listens there.
absl::StatusOr<Fd> Dial(const std::string& endpoint, const std::string& local_address);

}  // namespace bucketd::agent
