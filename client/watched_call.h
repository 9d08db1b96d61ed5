// A call that may take long, to one of several servers: looked after while it waits, so that it
// does not wait for a server that says nothing any more, or where nobody else comes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "client/server_channel.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace bucketd::client {

// One attempt at a call, with a context whose deadline is set.
using Attempt = std::function<grpc::Status(grpc::ClientContext& context,
                                           const std::shared_ptr<grpc::Channel>& channel)>;

template <typename Stub, typename Request, typename Response>
using Rpc = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

// Of one message each way. Keeps references to both.
template <typename Stub, typename Request, typename Response>
Attempt Unary(Rpc<Stub, Request, Response> rpc, const Request& request, Response& response) {
  return [=, &request, &response](grpc::ClientContext& context,
                                  const std::shared_ptr<grpc::Channel>& channel) {
    return (Stub(channel).*rpc)(&context, request, &response);
  };
}

struct WatchOptions {
  std::chrono::milliseconds first_look{1000};   // into a call; the second comes after twice that
  std::chrono::milliseconds later_looks{5000};  // and these ask the call's own server, too
  int silent = 2;  // of them in a row that it does not answer, until the call is cancelled
};

// Cancels `call` when it had better be made elsewhere. Used by the thread that makes it.
class CallWatch {
 public:
  // `earlier`: servers that the call would rather wait at.
  CallWatch(grpc::ClientContext& call, std::shared_ptr<ServerChannel> at, ServerList earlier,
            const WatchOptions& options = {});
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Once the call has ended. Ends the watch; says where to make the call again, or null.
  std::shared_ptr<ServerChannel> Elsewhere();

 private:
  void Run();
  bool Ended(std::chrono::milliseconds wait);
  grpc::Status Ping(ServerChannel& server, std::chrono::milliseconds patience);

  grpc::ClientContext& call_;
  const std::shared_ptr<ServerChannel> at_;
  const ServerList earlier_;
  const WatchOptions options_;
  std::mutex mutex_;
  std::condition_variable ended_cv_;
  bool ended_ = false;
  grpc::ClientContext* ping_ = nullptr;
  std::shared_ptr<ServerChannel> elsewhere_;
  std::thread thread_;
};

}  // namespace bucketd::client
