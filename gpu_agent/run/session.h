// The ranks that a command runs on this machine: this process is rank 0 and starts itself again for
// the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <sys/types.h>

#include "gpu_agent/backend/backend.h"
#include "gpu_agent/comm/communicator.h"

namespace bucketd::agent {

struct SessionOptions {
  std::string backend = "auto";  // Backend::Open
  int ranks = 2;                 // 2 to 64
  std::string tcp_interface;     // "": unix sockets
  // How a rank other than 0 was started; "" and -1 in the process that the user started.
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

  int rank() const { return rank_; }
  int ranks() const { return options_.ranks; }
  const std::string& backend() const { return backend_->name(); }
  Device& device() { return backend_->device(); }
  Copier& copier() { return backend_->copier(); }
  // A process group of all ranks; they ask for the same names in the same order.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const std::string& group);
  // Waits until all others have ended. UNAVAILABLE names a rank that failed.
  absl::Status Join();

 private:
  explicit Session(const SessionOptions& options);
  absl::Status MakeFolder();
  absl::Status ReadToken();
  absl::Status StartOthers(const std::vector<std::string>& arguments);

  const SessionOptions options_;
  const int rank_;
  std::unique_ptr<Backend> backend_;
  std::string folder_;
  std::string token_;
  int groups_ = 0;
  std::vector<pid_t> others_;  // rank 1 and up; 0: has ended
};

}  // namespace bucketd::agent
