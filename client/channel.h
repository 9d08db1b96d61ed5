// The connection that every C++ client of bucketd makes, and what gRPC's errors become. Launchers,
// which include planner_client.h, see none of gRPC's types.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/client_tls.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/status.h"

namespace bucketd::client {

struct ChannelOptions {
  // Whose calls gRPC repeats by itself on UNAVAILABLE and CANCELLED (which is what a server that
  // shuts down leaves behind), five attempts in all, with pauses of 0.1 to 2 s and jitter: services
  // ("bucketd.v1.Planner") or methods ("bucketd.v1.Planner/GetPlan"). Only what may run twice
  // belongs here: whether a repeated call ran before is unknown.
  std::vector<std::string> retried = {};
  // Methods of those services that are not repeated.
  std::vector<std::string> not_retried = {};
  // A connection of its own; else channels to one address share one.
  bool own_connection = false;
  ClientTls tls = {};
  // MakeCredentials(tls), for channels that share what watches the files; null: each its own.
  std::shared_ptr<grpc::ChannelCredentials> credentials = {};
  // Whom the server's certificate has to name; "": the host of the address.
  std::string server_name = {};
};

// A thread of their own looks at the files of `tls` every few seconds, until the last channel that
// was made with them is gone, and they are.
std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const ClientTls& tls);

// To one server, "host:port" or "unix:/path". Never fails and does not connect: the first call
// does, and waits for files of `tls` that are not there. With TLS the server's certificate has to
// name `options.server_name`, else the address's host. Comes back within 2 s of a server that
// returns, however long it was away. Ignores HTTP proxies. Thread-safe; unusable in a forked child.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelOptions& options);

// The service config of MakeChannel, as JSON.
std::string ServiceConfig(const ChannelOptions& options);

// OK, or the service's error with its details as payloads and its reason before the message
// (errors.h). Where the service gave none: UNREACHABLE for UNAVAILABLE and CANCELLED, DEADLINE for
// DEADLINE_EXCEEDED, else PROTOCOL; the code stays, but for CANCELLED, which becomes UNAVAILABLE.
// `where` says what was called, e.g. "GetPlan at unix:/run/bucketd".
absl::Status FromRpc(const grpc::Status& status, absl::string_view where);

// Whether the call may have met a server that went away: UNAVAILABLE or CANCELLED.
bool IsGone(const grpc::Status& status);

// Whether a server said so: not what gRPC makes of one that is not there, or says nothing.
bool IsAnswer(const grpc::Status& status);

// An answer of a server that takes calls: any but DRAINING.
bool IsStanding(const grpc::Status& status);

}  // namespace bucketd::client
