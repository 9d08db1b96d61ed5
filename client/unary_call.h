// Calls of one message each way. Internal to the library.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/strip.h"
#include "client/once_call.h"
#include "grpcpp/client_context.h"

#include "passes/base/status_macros.h"

namespace bucketd::client {

template <typename Stub, typename Request, typename Response>
using Rpc = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

// One attempt at it. Keeps references to both messages.
template <typename Stub, typename Request, typename Response>
Attempt Unary(Rpc<Stub, Request, Response> rpc, const Request& request, Response& response) {
  return [=, &request, &response](grpc::ClientContext& context,
                                  const std::shared_ptr<grpc::Channel>& channel) {
    return (Stub(channel).*rpc)(&context, request, &response);
  };
}

// CallOnce (once_call.h). For errors the call is named as its request is: "GetStatus".
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> UnaryOnce(ServerChannels& servers, const OnceOptions& options,
                                   Rpc<Stub, Request, Response> rpc, const Request& request) {
  Response response;
  const absl::string_view name = absl::StripSuffix(Request::descriptor()->name(), "Request");
  RETURN_IF_ERROR(CallOnce(servers, options, name, Unary(rpc, request, response)));
  return response;
}

}  // namespace bucketd::client
