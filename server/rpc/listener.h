// What gRPC's listener of a server is given: credentials, bounds, a socket of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

#include "server/config/options.h"
#include "server/identity/trust.h"
#include "server/rpc/connection_guard.h"
#include "server/rpc/pings.h"

namespace bucketd {

// What gRPC and protobuf say by themselves goes to the log from here on. For the whole process.
void LogLibraries();

// Clear text where `trust` is null, else TLS, with certificates of callers as the options want
// them. `trust` outlives the server.
std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const Trust* trust,
                                                       const TlsOptions& options);

// So much for messages that are not whole yet, and so much for requests that wait to be read or
// answered: gRPC itself never comes to the end of its quota, where it closes connections.
int64_t HalfOfMessages(const ServerOptions& options);
// What connections may have. Some of the files that this process may open are for the store and the
// side port. Calls: twice what clients are told, since a call's end is seen a little later here.
ConnectionLimits LimitsOf(const ServerOptions& options);
// What a connection, and all of them, may make gRPC hold; with TLS, how old a connection may get;
// of a replica, how long one may be silent: a client's gRPC answers pings by itself.
void BoundTransport(grpc::ServerBuilder& builder, const ServerOptions& options, const Pings& pings);

// Starts at `options.listen`; of a unix socket, takes the place of one that a dead server left, and
// opens it as wide as the options say, never wider. `address` becomes where it listens.
// UNAVAILABLE, ALREADY_EXISTS: why it cannot.
absl::Status StartAt(const ServerOptions& options, grpc::ServerBuilder& builder,
                     const std::shared_ptr<grpc::ServerCredentials>& credentials,
                     std::unique_ptr<grpc::Server>& server, std::string& address);

}  // namespace bucketd
