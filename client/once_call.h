// A call that is made once. A server that drains did not begin with it, so the next one is asked;
// after anything else nobody knows whether it ran, and the caller decides what comes next.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/server_channel.h"
#include "client/watched_call.h"

#include "passes/base/status_macros.h"

namespace bucketd::client {

struct OnceOptions {
  std::chrono::milliseconds deadline{15'000};
  // In which order servers are asked (addresses.h); "": as they are listed.
  std::string about = {};
  // The call waits for others, and follows them to the first server that is there. May run twice.
  bool meets = false;
  // Only this one: the target of a server that was asked before. "": any.
  std::string only = {};
};

// Errors are FromRpc's (channel.h), or UNREACHABLE where none of several servers answers within
// three seconds. `asked` is the target of the last server that was asked; may be null.
absl::Status CallOnce(ServerChannels& channels, const OnceOptions& options, absl::string_view name,
                      const Attempt& attempt, std::string* asked = nullptr);

// The same of one message each way. Errors name the call as its request is: "GetStatus".
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> CallOnce(ServerChannels& channels, const OnceOptions& options,
                                  Rpc<Stub, Request, Response> rpc, const Request& request) {
  Response response;
  const absl::string_view name = absl::StripSuffix(Request::descriptor()->name(), "Request");
  RETURN_IF_ERROR(CallOnce(channels, options, name, Unary(rpc, request, response)));
  return response;
}

}  // namespace bucketd::client
