// The socket ring: the processor's backend, over unix sockets within a host and TCP between hosts,
// for every dtype. Order and rounding of its sums are those of ring_schedule.h and reduce.h and do
// not depend on segments, sockets or timing.
//
// Data is neither encrypted nor authenticated behind the handshake (ring_connect.h): over TCP it
// wants a trusted network, as NCCL does.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/comm/ring_schedule.h"
#include "gpu_agent/comm/socket.h"

namespace bucketd::agent {

struct RingOptions {
  // From the moment that a launch begins on its stream until it ends. The peers' late arrival
  // counts.
  absl::Duration timeout = absl::Minutes(10);
  // Bytes of a chunk that move together. Smaller costs calls, larger costs cache. At least 16. All
  // ranks have the same; tests make it small.
  int64_t max_segment = 256 << 10;
  // All ranks have the same.
  RingOrder order = RingOrder::kNccl;
};

// Connected and authenticated neighbours. Unix: on one host.
struct RingPeers {
  int rank = 0;
  int size = 1;
  Fd left;                // none for a ring of one
  Fd right;               // never the same connection as left, even of two ranks
  std::string transport;  // "unix sockets", "tcp 10.0.0.1"
};

// Launches go to host streams, to one at a time: what runs at once is run in some order. A launch
// that a failed stream drops is missing on this rank: Abort().
class RingCommunicator final : public Communicator {
 public:
  // INVALID_ARGUMENT for options or peers that are not as above.
  static absl::StatusOr<std::unique_ptr<RingCommunicator>> Create(RingPeers peers,
                                                                  const RingOptions& options);
  // What is under way ends with ABORTED.
  ~RingCommunicator() override;

  absl::Status Launch(Stream& stream, absl::Span<const Collective> group) override;
  int rank() const override;
  int size() const override;
  std::string ToString() const override;
  absl::Status health() const override;
  void Abort(const std::string& why) override;
  // Sleeps until the deadline, and returns OK then; before it with UNAVAILABLE, which names the
  // neighbour that hung up (the communicator is of no use any more, but has to be aborted), or with
  // the communicator's error. REQUIRES: nothing is under way.
  absl::Status WatchNeighbours(absl::Time deadline);

 private:
  class Core;
  explicit RingCommunicator(std::shared_ptr<Core> core);

  std::shared_ptr<Core> core_;  // shared with what is enqueued
};

}  // namespace bucketd::agent
