// Puts together what NCCL tells of a collective in pieces: that it is launched, then of each of its
// channels that the kernel has begun and ended there, from another thread. Its time is that from
// the first channel's start to the last one's end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "gpu_agent/telemetry/ring_layout.h"

namespace bucketd::agent {

// What a number that NCCL hands back to us stands for: its lowest byte.
enum class Handle : uint8_t { kCollective = 1, kChannel, kCall, kLaunch, kCommunicator };
inline bool Is(uint64_t number, Handle kind) {
  return (number & 0xff) == static_cast<uint8_t>(kind);
}

// Thread-safe. Collectives and channels are known by numbers, never 0, that are checked: one that
// is made up, or of a collective that is over, is taken for nothing.
class KernelTimes {
 public:
  // Collectives under way, or whose channels never come, as after an abort. The host is never so
  // far before the GPU; one more takes the place of the oldest.
  static constexpr size_t kMost = 4096;
  static constexpr unsigned kChannels = 64;  // NCCL's MAXCHANNELS

  // Returns a collective, or 0 where its channels are not 1 to kChannels.
  uint64_t Launched(const RunRecord& record, unsigned channels);
  // It shares its kernel with others: its time says nothing of itself, so its link is forgotten.
  void Shares(uint64_t collective);
  // Returns a channel, or 0.
  uint64_t ChannelBegan(uint64_t collective, unsigned channel, uint64_t at_ns);
  // The collective's record with its time, from its last channel.
  std::optional<RunRecord> ChannelEnded(uint64_t channel, uint64_t at_ns);
  // Since the last call: collectives that no record has come of, or will.
  uint64_t TakeLost();

 private:
  struct Collective {
    uint32_t generation = 0;
    bool under_way = false;
    uint8_t channels = 0;
    uint64_t began = 0, ended = 0;  // a bit a channel
    uint64_t begin_ns = 0, end_ns = 0;
    RunRecord record;
  };
  // Null: it is none that is under way. Under mutex_, as all that follows.
  Collective* Of(uint64_t number);

  std::mutex mutex_;
  std::array<Collective, kMost> collectives_;
  size_t next_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace bucketd::agent
