// Waiting for the reasons to stop, as file descriptors: nothing of ours runs inside a signal
// handler.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include <sys/types.h>

namespace bucketd {

class StopSignals {
 public:
  enum class Cause { kSignal, kParentGone, kEnded };

  // Blocks SIGTERM and SIGINT in the calling thread and those it starts later, and ignores SIGPIPE:
  // call it before any other thread exists. `parent`: Wait() also returns when that process ends;
  // 0: no. FAILED_PRECONDITION if it has ended or is not our parent.
  static absl::StatusOr<std::unique_ptr<StopSignals>> Create(pid_t parent = 0);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  Cause Wait();  // blocks
  // From another thread: there is nothing left to stop, Wait() returns kEnded.
  void Ended();
  // After this a second signal ends the process at once, as signals do.
  static void RestoreDefaults();

 private:
  StopSignals() = default;
  int signal_fd_ = -1;
  int parent_fd_ = -1;
  int ended_fd_ = -1;
};

}  // namespace bucketd
