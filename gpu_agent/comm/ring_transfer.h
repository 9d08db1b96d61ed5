// One grouped launch on its way around the ring: sends and receives at once, without a step ever
// waiting for a whole buffer, and sleeps in poll while neither can go on.
//
// It cannot deadlock, whatever the sizes and the sockets' buffers: take the rank whose next byte to
// send is the earliest in the sequence. What that byte depends on was sent before by its left
// neighbour, and its own receiving waits at most for bytes that it has sent already, so it has the
// byte; its right neighbour, which has sent at least as much, may receive everything up to there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/comm/health.h"
#include "gpu_agent/comm/ring_schedule.h"
#include "gpu_agent/comm/socket.h"
#include "gpu_agent/device/steady.h"

namespace bucketd::agent {

// What a ring keeps from launch to launch. One thread uses it, but for `health` and `wake`.
struct RingLinks {
  int rank = 0;
  int size = 1;
  RingOrder order = RingOrder::kNccl;
  Fd from;  // the neighbour that is received from; connected, non-blocking
  Fd to;    // ... sent to
  Fd wake;  // an eventfd, readable once `health` is not OK

  Health health;
  std::vector<std::byte> scratch;  // of reduce-scatters: what is to be sent in the next step
  // Bytes received and not yet used, at [staged_begin, staged_end): they may be the next launch's.
  std::vector<std::byte> staging;
  size_t staged_begin = 0;
  size_t staged_end = 0;
};

enum class RingSide { kIn, kOut };
// "rank 2, the left neighbour"
std::string NeighbourOf(const RingLinks& links, RingSide side);
// UNAVAILABLE: that neighbour hung up; with the reason, of errno, if it is not 0.
absl::Status NeighbourGone(const RingLinks& links, RingSide side, int error);

class RingTransfer {
 public:
  // REQUIRES: a valid group and size >= 2.
  RingTransfer(RingLinks& links, absl::Span<const Collective> group, int64_t max_segment,
               SteadyTime deadline);

  // Until everything is sent and received. UNAVAILABLE names the neighbour that went away,
  // DEADLINE_EXCEEDED the one that was waited for; the links' health if that is not OK.
  absl::Status Run();

 private:
  // A walk over the pieces that have bytes.
  struct Walk {
    RingPosition at;
    RingPiece piece;
    int64_t done = 0;  // bytes of the piece
    bool end = false;
    int64_t remaining() const { return piece.bytes - done; }
  };
  using Side = RingSide;

  void Enter(Walk& walk, Side side, bool exists) const;
  void Advance(Walk& walk, Side side, int64_t bytes) const;
  int64_t Sendable(const Walk& outgoing) const;
  int64_t Receivable() const;
  absl::StatusOr<bool> Send();
  absl::StatusOr<bool> Receive();
  absl::StatusOr<int64_t> Read(std::byte* to, int64_t bytes);
  bool UseStaged();
  void Reduce(const std::byte* received, int64_t bytes) const;
  bool WantsInput() const;
  bool ReadsDirectly() const;
  bool CopyOwnPart();
  absl::Status Sleep();
  absl::Status Gone(Side side, int error) const;
  absl::Status Late() const;

  RingLinks& links_;
  absl::Span<const Collective> group_;
  RingSchedule schedule_;
  SteadyTime deadline_;
  Walk outgoing_;
  Walk incoming_;
  // All-gathers' own parts, copied while there is nothing else to do.
  size_t own_member_ = 0;
  int64_t own_done_ = 0;
};

}  // namespace bucketd::agent
