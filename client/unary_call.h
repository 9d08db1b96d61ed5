// A unary call that ends by its deadline and is not repeated. Internal to the library.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "grpcpp/client_context.h"

namespace bucketd::client {

template <typename Stub>
struct UnaryCalls {
  template <typename Request, typename Response>
  using Rpc = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

  Stub& stub;
  const std::string& address;
  std::chrono::milliseconds deadline;

  // `name` is for errors.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Make(const char* name, Rpc<Request, Response> rpc,
                                const Request& request) const {
    grpc::ClientContext context;
    return Make(name, rpc, request, context);
  }

  // With a context of the caller's, who may cancel it.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Make(const char* name, Rpc<Request, Response> rpc,
                                const Request& request, grpc::ClientContext& context) const {
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    Response response;
    const grpc::Status status = (stub.*rpc)(&context, request, &response);
    if (status.ok()) return response;
    return FromRpc(status, absl::StrCat(name, " at ", address));
  }
};

}  // namespace bucketd::client
