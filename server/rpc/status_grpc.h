// absl::Status to gRPC, reasons and all.
#pragma once

#include <chrono>
#include <iterator>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

#include "server/base/clock.h"
#include "server/base/errors.h"
#include "server/base/host.h"
#include "server/base/trace_context.h"
#include "server/rpc/request_scope.h"

namespace bucketd {

inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      SerializeRpcStatus(status));
}

// The trace that the caller sent, if it is one; a header that comes twice is invalid.
inline std::optional<TraceContext> TraceOf(const grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range("traceparent");
  if (first == last || std::next(first) != last) return std::nullopt;
  return ParseTraceparent(absl::string_view(first->second.data(), first->second.size()));
}

// When the call is to be answered.
inline SteadyTime DeadlineOf(const grpc::CallbackServerContext& context,
                             std::chrono::milliseconds max_wait) {
  const SteadyTime now = std::chrono::steady_clock::now();
  const auto wall_now = std::chrono::system_clock::now();
  const auto deadline = context.deadline();  // time_point::max() if the caller has none
  if (deadline >= wall_now + max_wait) return now + max_wait;
  return now + (deadline - wall_now);
}

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
