// Does for connections in TLS what connection_guard.h does for others: ends those that flood their
// server with HTTP/2 frames, before gRPC has seen the frames.
//
// gRPC (1.51, as distributions build it) decrypts by calling `SSL_read` of OpenSSL's shared
// library, and encrypts by `SSL_write`. This file defines these functions, which gRPC then calls in
// the library's place: they do the same and count what came and went. Sessions that this process
// opened as a client are not affected.
//
// It also keeps sessions from being resumed, by defining `SSL_CTX_set_session_id_context`: gRPC has
// no option for that. Who resumes shows no certificate, OpenSSL verifies none, and gRPC hands out
// the one of the first handshake: a client that kept its session stayed who it had been after its
// certificate had expired or been replaced, until the server's own files changed. Nobody loses by
// it: our clients and other replicas are built on gRPC's core, which keeps no sessions unasked.
//
// What it cannot do: a session knows no address, so who comes back after a flood has the whole
// budget again, for the price of a handshake, which costs both sides about the same; and each
// session is a peer by itself. Handshakes themselves are not bounded.
#pragma once

#include <functional>

#include "server/rpc/connection_guard.h"

namespace bucketd {

// From here on sessions are looked at; `on_closed` is called for each that is ended, on any thread,
// until the next call of this. `limits`: as GuardConnections', but for connections. Naming this
// function is what links the file.
void GuardSessions(std::function<void()> on_closed, ConnectionLimits limits = {});

}  // namespace bucketd
