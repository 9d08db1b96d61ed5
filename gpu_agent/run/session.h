// The ranks that a command runs on this machine: this process is rank 0 and starts itself again for
// the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <sys/types.h>

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/device/host_device.h"
#include "gpu_agent/exec/host_copier.h"

namespace bucketd::agent {

struct SessionOptions {
  std::string backend = "ring";  // the only one so far
  int ranks = 2;                 // 2 to 64
  // How a rank other than 0 was started; "" and -1 in the process that the user started.
  std::string folder;
  int rank = -1;
};

// The flags of options above, the last two hidden, are given to the other ranks beside all of the
// user's own.
inline constexpr char kRankFlag[] = "--rank";
inline constexpr char kFolderFlag[] = "--rendezvous";

// One thread uses it.
class Session {
 public:
  // Starts the other ranks where this is the first, and binds each to its share of the processors.
  // `arguments` as main got them.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const SessionOptions& options,
                                                       const std::vector<std::string>& arguments);
  // Ends ranks that still run.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return options_.ranks; }
  Device& device() { return device_; }
  Copier& copier() { return copier_; }
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
  HostDevice device_;
  HostCopier copier_;
  std::string folder_;
  std::string token_;
  int groups_ = 0;
  std::vector<pid_t> others_;  // rank 1 and up; 0: has ended
};

}  // namespace bucketd::agent
