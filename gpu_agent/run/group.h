// A process group of one epoch: met at the planner, connected, watched until it is over.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/agent_client.h"

#include "gpu_agent/backend/backend.h"
#include "gpu_agent/comm/communicator.h"

namespace bucketd::agent {

struct GroupOptions {
  std::string tenant, name;
  int rank = 0, size = 1;
  std::string unix_folder, tcp_interface;  // one of them: ring_connect.h
  std::string agrees;                      // equal on all ranks, or they do not meet; <= 64 bytes
  // How long the others are waited for: to come, then to connect (no longer than 10 s), and in each
  // collective.
  absl::Duration timeout = absl::Seconds(30);
};

// Thread-safe, but that one thread launches.
class Group {
 public:
  // Blocks until all ranks have come and are connected. The planner's errors (AgentClient), or
  // ConnectRing's and the backend's; the latter have ended the epoch for the other ranks. `client`
  // and `backend` outlive the group; the client's StopWaiting ends the wait for the others.
  static absl::StatusOr<std::unique_ptr<Group>> Meet(client::AgentClient& client, Backend& backend,
                                                     const GroupOptions& options);
  // Aborts the communicator; says nothing to the planner. An epoch that goes on holds it up, for as
  // long as a long poll, unless the client has been told StopWaiting.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  uint64_t epoch() const { return epoch_; }
  Communicator& communicator() { return *communicator_; }
  // Sleeps until `time`, and returns OK then; before it if the group is over, with the error: of a
  // neighbour that hung up, or fate(). REQUIRES: the communicator has nothing under way.
  absl::Status WaitUntil(absl::Time time);
  // Returns whether it was over before `time`.
  bool PauseUntil(absl::Time time);
  // ABORTED with what the planner said of the epoch's end; OK as long as it goes on.
  absl::Status fate() const;
  // Ends it here, and through the planner for all ranks. The first reason counts, also the
  // planner's. May block for as long as a short call.
  void End(const std::string& why);
  // The same for who has nothing left to do but to say what it ended of: ABORTED with what the
  // planner heard first, which all ranks are told.
  absl::Status Ended(const std::string& why);
  // Ends it without a word to the planner, at once. Returns whether this was the first end.
  bool Abort(const std::string& why);

 private:
  Group(client::AgentClient& client, const GroupOptions& options, uint64_t epoch,
        std::unique_ptr<Communicator> communicator);
  void Watch();

  client::AgentClient& client_;
  const GroupOptions options_;
  const uint64_t epoch_;
  const std::unique_ptr<Communicator> communicator_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status fate_;
  std::jthread watcher_;
};

}  // namespace bucketd::agent
