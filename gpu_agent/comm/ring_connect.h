// Brings a ring up: listens, publishes where, dials the right neighbour, lets the left one in.
//
// Nobody who does not know the token gets further than the handshake, and strangers keep no peer
// out: a connection that is none of the protocol's is dropped and the next one heard.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu_agent/comm/endpoint.h"
#include "gpu_agent/comm/handshake.h"
#include "gpu_agent/comm/rendezvous.h"
#include "gpu_agent/comm/ring.h"

namespace bucketd::agent {

struct RingConnectOptions {
  RingIdentity self;
  std::string token;  // the group's secret, at least 16 bytes
  // One of the two. Unix: a folder of this user alone, for the socket; short, since a socket's path
  // has at most 107 bytes. TCP: the interface to bind to and to dial from, by name or address.
  std::string unix_folder;
  std::string tcp_interface;
  absl::Time deadline = absl::InfiniteFuture();
  // Asked ten times a second while a neighbour is waited for; its error ends that. Null: nobody
  // knows more than the neighbours say.
  std::function<absl::Status()> still_come = nullptr;
};

// The connected neighbours of this rank. Blocks. INVALID_ARGUMENT for options that are not as
// above; FAILED_PRECONDITION for a peer of a newer epoch, another size or rank, naming both sides;
// UNAUTHENTICATED for a neighbour that does not know the token. Until the deadline it waits for a
// neighbour that is not there yet, or where something else listens; then DEADLINE_EXCEEDED, or what
// tells the most of whom it met: of an older epoch or another group FAILED_PRECONDITION, another
// user PERMISSION_DENIED, a wrong token UNAUTHENTICATED.
absl::StatusOr<RingPeers> ConnectRing(const RingConnectOptions& options,
                                      FolderRendezvous& rendezvous);

// Where a rank listens; NOT_FOUND: that is not known yet. May be out of date, whoever cannot
// connect there asks again, and is not trusted: the handshake decides who a peer is.
using EndpointOf = std::function<absl::StatusOr<std::string>(int rank)>;

// In two parts, for a rendezvous that gives epoch and token only to whoever says where it listens:
// a listener on the transport of `options` (nothing else of them counts), then the rest, which
// publishes nothing.
absl::StatusOr<Listener> ListenForRing(const RingConnectOptions& options);
absl::StatusOr<RingPeers> ConnectRing(const RingConnectOptions& options, const Listener& listener,
                                      const EndpointOf& endpoint_of);

}  // namespace bucketd::agent
