// The measurements of a daemon: what its group's collectives take, and which rank is slow.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/device/stream.h"
#include "gpu_agent/run/sweep.h"

namespace bucketd::agent {

struct Probe {
  SweepResult sweep;
  int64_t wrong = 0;  // elements, of all ranks
  // Of the time that the same copies take on each rank alone: the slowest over the median (the
  // lower of the middle two).
  double straggler_ratio = 1.0;
  int slowest = 0;
};

// One thread uses it; communicator and device outlive it.
class Prober {
 public:
  // Messages of up to `max_bytes`, at least 4 KiB.
  Prober(Device& device, Communicator& communicator, int64_t max_bytes)
      : device_(device), communicator_(communicator), max_bytes_(max_bytes) {}

  // All sizes: for when a group has just met. All ranks call the same, in the same order.
  absl::StatusOr<Probe> Whole();
  // Two sizes.
  absl::StatusOr<Probe> Short();

 private:
  absl::Status Add(int64_t min_bytes, int64_t max_bytes, Probe& probe);
  absl::Status FindStraggler(Probe& probe);

  Device& device_;
  Communicator& communicator_;
  const int64_t max_bytes_;
};

}  // namespace bucketd::agent
