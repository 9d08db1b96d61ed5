// What the conformance test needs of a kind of communicator; a new kind is one more factory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/comm/ring_schedule.h"
#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

// Of one process group, whose ranks all live in this process.
class CommunicatorGroup {
 public:
  virtual ~CommunicatorGroup() = default;
  // Blocks until the group is whole; the ranks call at once, each on a thread of its own.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Make(int rank) = 0;
};

struct GroupOptions {
  int size = 1;
  int64_t max_segment = 1 << 18;  // for kinds that have one
  absl::Duration timeout = absl::Minutes(1);
};

struct CommunicatorFactory {
  std::string name;  // of the test's instances: letters and digits
  int max_ranks = 1;
  // Floating-point sums have the order and the roundings of ring_schedule.h and reduce.h. Else
  // payloads are such that every order gives the same bits.
  bool ring_order = true;
  RingOrder order = RingOrder::kNccl;
  // Ranks learn of one that dies, leaves or is late in the ring's words.
  bool tells_of_peers = true;
  // Whether a process group of `size` has the collective at all; null: whatever is valid.
  std::function<bool(const Collective&, int size)> takes = nullptr;
  std::function<std::unique_ptr<Device>()> new_device;
  std::function<std::unique_ptr<CommunicatorGroup>(const GroupOptions&)> new_group;
};

// What the conformance test of this program is about.
const std::vector<CommunicatorFactory>& Factories();

}  // namespace bucketd::agent
