// The Agents service of a running server: where ranks of a group meet. Errors as FromRpc
// (channel.h) makes them. Nothing is repeated: whoever fails to meet decides what comes next. Of
// several servers all ranks of a group ask the same first, and what they ask of an epoch goes where
// it began.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "client/client_tls.h"
#include "client/server_channel.h"
#include "client/watched_call.h"

#include "proto/agent.grpc.pb.h"

namespace bucketd::client {

// Thread-safe.
class AgentClient {
 public:
  // As addresses.h says. Connects at the first call.
  explicit AgentClient(std::string address, const ClientTls& tls = {});

  // Returns when all ranks have come, or by `patience`.
  absl::StatusOr<v1::RendezvousResponse> Rendezvous(const v1::RendezvousRequest& request,
                                                    std::chrono::milliseconds patience);
  // Returns when the epoch is over, or by `patience`.
  absl::StatusOr<v1::WatchEpochResponse> WatchEpoch(const v1::WatchEpochRequest& request,
                                                    std::chrono::milliseconds patience);
  absl::StatusOr<v1::EndEpochResponse> EndEpoch(const v1::EndEpochRequest& request);

  // For good: the two calls that wait, those under way and later ones, end with
  // UNAVAILABLE: at once, or where a server is being looked for, as soon as that is over.
  void StopWaiting();

 private:
  // Of a call that StopWaiting ends.
  Attempt Stoppable(Attempt attempt);
  std::string MetAt(const std::string& group);

  ServerChannels servers_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::map<std::string, std::string> met_at_;  // by group: the server of its last epoch
  std::set<grpc::ClientContext*> waiting_;
};

}  // namespace bucketd::client
