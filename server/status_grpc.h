// absl::Status to gRPC, reasons and all.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

#include "server/errors.h"
#include "server/request_scope.h"

namespace bucketd {

inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      SerializeRpcStatus(status));
}

// Ends `scope` and, on an error, names the request to the caller.
inline grpc::Status EndRequest(RequestScope& scope, grpc::CallbackServerContext& context,
                               const absl::Status& status, absl::string_view about) {
  if (!status.ok()) context.AddTrailingMetadata("bucketd-request-id", scope.id());
  scope.End(status, about);
  return ToGrpcStatus(status);
}

}  // namespace bucketd
