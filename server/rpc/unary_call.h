// Calls of one message and one answer that may block: done on a thread of their service.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

#include "passes/base/status_macros.h"
#include "server/base/errors.h"
#include "server/base/worker_pool.h"
#include "server/rpc/admission.h"
#include "server/rpc/request_bytes.h"
#include "server/rpc/request_scope.h"
#include "server/rpc/status_grpc.h"

namespace bucketd {

struct UnaryCall {
  Method method;
  grpc::CallbackServerContext& context;
  const Admission& admission;
  ServerMetrics& metrics;
};

// `work` is done on `pool` for whoever may call; where that is full, the answer is that too many
// `such` wait. gRPC keeps context and answer until the reactor is done.
inline grpc::ServerUnaryReactor* RunOn(WorkerPool& pool, absl::string_view such,
                                       const UnaryCall& call,
                                       std::function<absl::Status(const Caller&)> work) {
  grpc::ServerUnaryReactor* reactor = call.context.DefaultReactor();
  const auto end = [scope = std::make_shared<RequestScope>(call.method, call.metrics), reactor,
                    &context = call.context](const absl::Status& status) {
    reactor->Finish(EndRequest(*scope, context, status, absl::StrCat("peer=", context.peer())));
  };
  absl::StatusOr<Caller> caller = call.admission.Admit(call.method, call.context);
  if (!caller.ok()) {
    end(caller.status());
  } else if (!pool.TrySubmit([end, work = std::move(work), caller = *std::move(caller)] {
               end(work(caller));
             })) {
    end(MakeError(Reason::kOverloaded, absl::StrCat("too many ", such, " wait")));
  }
  return reactor;
}

// The same for a call that asks with a message, of at most so many bytes, and is answered by what
// ask(message, caller) says.
template <typename Request, typename Ask>
grpc::ServerUnaryReactor* AnswerOn(WorkerPool& pool, absl::string_view such, const UnaryCall& call,
                                   const grpc::ByteBuffer* given, grpc::ByteBuffer* response,
                                   Ask ask, int64_t most = kMostRequestBytes) {
  return RunOn(pool, such, call,
               [bytes = RequestBytes(given), response, ask = std::move(ask),
                most](const Caller& caller) mutable -> absl::Status {
                 ASSIGN_OR_RETURN(Request request, bytes.Read<Request>(most));
                 const auto said = ask(request, caller);
                 if (said.ok()) *response = ToBytes(*said);
                 return said.status();
               });
}

}  // namespace bucketd
