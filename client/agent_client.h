// The Agents service of a running server: where ranks of a group meet. Errors as FromRpc
// (channel.h) makes them. Nothing is repeated: whoever fails to meet decides what comes next.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "proto/agent.grpc.pb.h"

namespace bucketd::client {

// Thread-safe.
class AgentClient {
 public:
  // "host:port" or "unix:/path". Connects at the first call.
  explicit AgentClient(std::string address);

  // Returns when all ranks have come, or by `patience`.
  absl::StatusOr<v1::RendezvousResponse> Rendezvous(const v1::RendezvousRequest& request,
                                                    std::chrono::milliseconds patience);
  // Returns when the epoch is over, or by `patience`.
  absl::StatusOr<v1::WatchEpochResponse> WatchEpoch(const v1::WatchEpochRequest& request,
                                                    std::chrono::milliseconds patience);
  absl::StatusOr<v1::EndEpochResponse> EndEpoch(const v1::EndEpochRequest& request);

 private:
  const std::string address_;
  const std::unique_ptr<v1::Agents::Stub> stub_;
};

}  // namespace bucketd::client
