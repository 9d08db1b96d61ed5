// CallOnce (once_call.h) for calls of one message each way. Internal to the library.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "client/once_call.h"
#include "grpcpp/client_context.h"

namespace bucketd::client {

template <typename Service>
struct UnaryCalls {
  template <typename Request, typename Response>
  using Rpc = grpc::Status (Service::Stub::*)(grpc::ClientContext*, const Request&, Response*);

  ServerChannels& servers;
  std::chrono::milliseconds deadline;

  // `name` is for errors.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Make(const char* name, Rpc<Request, Response> rpc,
                                const Request& request) const {
    Response response;
    const absl::Status status =
        CallOnce(servers, {.deadline = deadline}, name,
                 [&](grpc::ClientContext& context, const std::shared_ptr<grpc::Channel>& channel) {
                   return (*Service::NewStub(channel).*rpc)(&context, request, &response);
                 });
    if (!status.ok()) return status;
    return response;
  }
};

}  // namespace bucketd::client
