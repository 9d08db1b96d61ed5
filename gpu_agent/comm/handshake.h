// Two ranks prove to each other that they know the group's token and say who they are, on a fresh
// connection. The one that dials is the client:
//
//   client -> server   hello: magic, nonce, group, epoch, rank, size
//   server -> client   hello of its own, HMAC-SHA256(token, "server" + both hellos)
//   client -> server   HMAC-SHA256(token, "client" + both hellos)
//   server -> client   one byte: accepted
//
// Messages have one length each, so a stranger makes nobody read or keep more than that. Both
// nonces are under both codes: nothing can be replayed or reflected. The token never travels. It
// says who connected; it does not protect what follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "gpu_agent/comm/socket.h"

namespace bucketd::agent {

// Who a rank is. Under the codes.
struct RingIdentity {
  std::string group;  // 1 to 128 bytes, no zero byte
  int64_t epoch = 0;
  int rank = 0;
  int size = 1;
};

// "rank 1 of 4, group dp, epoch 7"
std::string Describe(const RingIdentity& identity);

// What a handshake comes to.
enum class Verdict {
  kPending,
  kAccepted,
  kStranger,  // not the protocol, or it went away: whoever it was, the peer may still come
  kRefused,   // speaks the protocol and does not know the token
  kStale,     // knows it, and is of another group or an older epoch: left over from something else
  kMismatch,  // knows it, and is of a newer epoch, another size, or not the rank that it has to be
};

class Handshake {
 public:
  enum class Role { kClient, kServer };

  // On a connected, non-blocking socket. `peer` is the rank that it has to be.
  Handshake(Fd fd, Role role, const RingIdentity& self, int peer, const std::string& token);
  // Closes the connection, unless it was taken, so that the peer still gets what was sent.
  ~Handshake();
  Handshake(Handshake&&) = default;
  Handshake& operator=(Handshake&&) = delete;

  // As far as it goes without blocking.
  Verdict Advance();
  // What poll waits for: POLLIN or POLLOUT.
  short events() const;
  int fd() const { return fd_.get(); }
  // Of the last verdict but kPending and kAccepted; names both sides where the peer is known.
  const absl::Status& error() const { return error_; }
  // The connection of an accepted peer.
  Fd Take() { return std::move(fd_); }

 private:
  Verdict Gone(const char* why);
  void Receive(std::string message);
  void OnHello(std::string message);
  void OnReply(const std::string& message);
  void OnProof(const std::string& message);
  void End(Verdict verdict, absl::Status error);
  void Judge();
  std::string CodeOf(Role role) const;

  Fd fd_;
  const Role role_;
  const RingIdentity self_;
  const int peer_;
  const std::string token_;
  std::string own_hello_;
  std::string peer_hello_;
  std::string output_;   // not yet written
  std::string input_;    // of the message that is expected
  size_t expected_ = 0;  // its length; 0: none, `verdict_` stands once `output_` is written
  Verdict verdict_ = Verdict::kPending;
  absl::Status error_;
};

}  // namespace bucketd::agent
