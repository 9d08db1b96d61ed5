// A trainer's side of its ring (ring_layout.h): memory of this process that the node's agent may
// read while it lives, however either of them ends.
//
// The memory is a memfd, sealed to its size, and nothing on a file system: it is gone with the last
// process that has it. Its descriptor travels to the agent over the agent's unix socket, so that
// agent and trainer need no common folder or user, and nobody but the agent gets at it. The
// connection stays: that it ends is how either hears of the other's death.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu_agent/comm/socket.h"
#include "gpu_agent/telemetry/ring_layout.h"

namespace bucketd::agent {

// Thread-safe.
class RingWriter {
 public:
  // `agent` is the path of its socket. An agent that is not there yet, or gone, or does not take
  // the ring, is tried again while records are written, at first every second, later every minute.
  // INVALID_ARGUMENT where the job's name or the path is too long; UNAVAILABLE where the kernel has
  // no memory for it.
  // REQUIRES: `records` is a power of two, at most kMostRingRecords.
  static absl::StatusOr<std::unique_ptr<RingWriter>> Create(absl::string_view job,
                                                            absl::string_view agent,
                                                            uint32_t records = kRingRecords);
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  // For RunRecord::link; an equal entry is there once. kNoLink where the table is full.
  uint8_t AddLink(const RingLink& link);
  // Of an executor that opens; a plan of the same digest is there once, with the arenas of all of
  // them. Whether there was room; else its records are of no known plan.
  bool AddPlan(const RingPlan& plan);
  // An executor of that plan is closed, and its arena is gone.
  void EndPlan(uint64_t plan, int64_t arena_bytes);

  // Waits for nobody. A record for which there is no room is dropped, and counted.
  void Write(const RunRecord& record);
  // Records that could not even be made, counted with those.
  void Lose(uint64_t records);
  uint64_t dropped() const;
  // Whether an agent had the ring when that was last looked at.
  bool connected() const;

 private:
  RingWriter(Fd memory, RingHeader* header, uint32_t records, std::string agent);
  void Meet(int64_t now_ns);
  bool Offer();
  bool AddArena(uint64_t plan, int64_t bytes);

  const Fd memory_;
  RingHeader* const header_;
  RunRecord* const records_;
  const uint64_t mask_;
  const std::string agent_;
  mutable std::mutex mutex_;
  // What the header says, but that an agent may write there.
  uint64_t head_ = 0, dropped_ = 0;
  uint32_t links_ = 0;
  std::vector<RingPlan> plans_;
  Fd connection_;
  int64_t look_at_ns_ = 0;  // at the connection, next
  int64_t offered_ns_ = 0;  // last
  int64_t pause_ns_ = 0;    // from then on; 0: an agent has taken it
};

}  // namespace bucketd::agent
