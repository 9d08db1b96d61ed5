// The ranks that a command runs on this machine: this process is the first and starts itself again
// for the others. On each of several nodes somebody starts the command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <sys/types.h>

#include "gpu_agent/backend/backend.h"
#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/run/group.h"

namespace bucketd::agent {

struct SessionOptions {
  std::string backend = "auto";  // Backend::Open
  int ranks = 2;                 // of this machine; with those of the other nodes 2 to 64
  std::string tcp_interface;     // "": unix sockets
  int node = 0, nodes = 1;       // all have as many ranks, and several want an interface
  // How a rank other than a node's first was started; "" and -1 where the user started it.
  std::string folder;
  int rank = -1;
};

// The flags of options above, the last two hidden, are given to the other ranks beside all of the
// user's own; the last --backend counts.
inline constexpr char kBackendFlag[] = "--backend";
inline constexpr char kInterfaceFlag[] = "--interface";
inline constexpr char kRankFlag[] = "--rank";
inline constexpr char kFolderFlag[] = "--rendezvous";

// One thread uses it.
class Session {
 public:
  // Starts the other ranks where this is the first, says on stderr which backend it chose and why,
  // and binds each rank to its share of the processors. `arguments` as main got them. Errors of
  // Backend::Open.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const SessionOptions& options,
                                                       const std::vector<std::string>& arguments);
  // Ends ranks that still run.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Of all nodes.
  int rank() const { return options_.node * options_.ranks + local_rank_; }
  int ranks() const { return options_.nodes * options_.ranks; }
  // Of this process, which the user started.
  bool first_of_node() const { return local_rank_ == 0; }
  const std::string& backend() const { return backend_->name(); }
  Device& device() { return backend_->device(); }
  // A process group of all ranks; they ask for the same names in the same order. As Lost where that
  // is why it did not come about. REQUIRES: one node.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const std::string& group);
  // The same of several nodes, whose ranks meet at the planner: `options` say how, but for rank,
  // size and transport. Errors of Group::Meet.
  absl::StatusOr<std::unique_ptr<Group>> Meet(client::AgentClient& client, GroupOptions options);
  // UNAVAILABLE names a rank of this node that has failed meanwhile. OK on all but the first of the
  // node.
  absl::Status Lost();
  // Waits until all others of this node have ended. UNAVAILABLE names a rank that failed.
  absl::Status Join();

 private:
  explicit Session(const SessionOptions& options);
  static absl::Status Check(const SessionOptions& options);
  absl::Status MakeFolder();
  absl::Status ReadToken();
  // What came of the i-th of the others, which has ended.
  absl::Status Ended(size_t i, int status);
  absl::Status StartOthers(const std::vector<std::string>& arguments);

  const SessionOptions options_;
  const int local_rank_;
  std::unique_ptr<Backend> backend_;
  std::string folder_;
  std::string token_;
  int groups_ = 0;
  std::vector<pid_t> others_;  // this node's second rank and up; 0: has ended
};

}  // namespace bucketd::agent
