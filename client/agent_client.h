// The Agents service of a running server: where ranks of a group meet. Errors as FromRpc
// (channel.h) makes them. Nothing is repeated: whoever fails to meet decides what comes next.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "client/client_tls.h"

#include "proto/agent.grpc.pb.h"

namespace bucketd::client {

// Thread-safe.
class AgentClient {
 public:
  // "host:port" or "unix:/path". Connects at the first call.
  explicit AgentClient(std::string address, const ClientTls& tls = {});

  // Returns when all ranks have come, or by `patience`.
  absl::StatusOr<v1::RendezvousResponse> Rendezvous(const v1::RendezvousRequest& request,
                                                    std::chrono::milliseconds patience);
  // Returns when the epoch is over, or by `patience`.
  absl::StatusOr<v1::WatchEpochResponse> WatchEpoch(const v1::WatchEpochRequest& request,
                                                    std::chrono::milliseconds patience);
  absl::StatusOr<v1::EndEpochResponse> EndEpoch(const v1::EndEpochRequest& request);

  // For good: the two calls that wait, those under way and later ones, end at once with
  // UNAVAILABLE.
  void StopWaiting();

 private:
  template <typename Rpc, typename Request>
  auto Wait(const char* name, Rpc rpc, const Request& request, std::chrono::milliseconds patience);

  const std::string address_;
  const std::unique_ptr<v1::Agents::Stub> stub_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::set<grpc::ClientContext*> waiting_;
};

}  // namespace bucketd::client
