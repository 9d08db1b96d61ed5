// absl::Status to gRPC, reasons and all.
#pragma once

#include <iterator>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

#include "server/base/errors.h"
#include "server/base/trace_context.h"
#include "server/rpc/request_scope.h"

namespace bucketd {

inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      SerializeRpcStatus(status));
}

// The trace that the caller sent, if it is one; a header that comes twice is none.
inline std::optional<TraceContext> TraceOf(const grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range("traceparent");
  if (first == last || std::next(first) != last) return std::nullopt;
  return ParseTraceparent(absl::string_view(first->second.data(), first->second.size()));
}

// Of a peer as gRPC names it: "ipv4:127.0.0.1:4711", "unix:...".
inline std::string HostOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

// Ends `scope`; names the request to the caller on an error, and our span to one who traces.
inline grpc::Status EndRequest(RequestScope& scope, grpc::CallbackServerContext& context,
                               const absl::Status& status, absl::string_view about) {
  const std::optional<TraceContext> trace = TraceOf(context);
  if (trace.has_value()) {
    context.AddTrailingMetadata("traceparent", Traceparent(*trace, scope.span_id()));
  }
  if (!status.ok()) context.AddTrailingMetadata("bucketd-request-id", scope.id());
  scope.End(status, about, trace);
  return ToGrpcStatus(status);
}

}  // namespace bucketd
