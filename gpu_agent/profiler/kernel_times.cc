#include "gpu_agent/profiler/kernel_times.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace bucketd::agent {
namespace {

// A number: generation of the place, place, channel, and what it is.
constexpr unsigned kGenerationBit = 32, kPlaceBit = 16, kChannelBit = 8;
static_assert(KernelTimes::kMost <= 1u << (kGenerationBit - kPlaceBit));
static_assert(KernelTimes::kChannels <= 1u << (kPlaceBit - kChannelBit));

uint64_t Number(Handle kind, uint32_t generation, size_t place, unsigned channel) {
  return uint64_t{generation} << kGenerationBit | uint64_t{place} << kPlaceBit |
         uint64_t{channel} << kChannelBit | static_cast<uint64_t>(kind);
}
size_t PlaceOf(uint64_t number) { return number >> kPlaceBit & 0xffff; }
unsigned ChannelOf(uint64_t number) { return number >> kChannelBit & 0xff; }

}  // namespace

KernelTimes::Collective* KernelTimes::Of(uint64_t number) {
  if (PlaceOf(number) >= kMost) return nullptr;
  Collective& found = collectives_[PlaceOf(number)];
  return found.under_way && found.generation == number >> kGenerationBit ? &found : nullptr;
}

uint64_t KernelTimes::Launched(const RunRecord& record, unsigned channels) {
  const std::lock_guard lock(mutex_);
  if (channels == 0 || channels > kChannels) {
    ++lost_;
    return 0;
  }
  const size_t place = std::exchange(next_, (next_ + 1) % kMost);
  Collective& mine = collectives_[place];
  if (mine.under_way) ++lost_;
  mine = {mine.generation + 1, true, static_cast<uint8_t>(channels), 0, 0, 0, 0, record};
  mine.begin_ns = std::numeric_limits<uint64_t>::max();
  return Number(Handle::kCollective, mine.generation, place, 0);
}

void KernelTimes::Shares(uint64_t collective) {
  const std::lock_guard lock(mutex_);
  Collective* const mine = Of(collective);
  if (mine != nullptr) mine->record.link = kNoLink;
}

uint64_t KernelTimes::ChannelBegan(uint64_t collective, unsigned channel, uint64_t at_ns) {
  const std::lock_guard lock(mutex_);
  if (!Is(collective, Handle::kCollective) || channel >= kChannels) return 0;
  Collective* const mine = Of(collective);
  if (mine == nullptr) return 0;
  mine->began |= uint64_t{1} << channel;
  mine->begin_ns = std::min(mine->begin_ns, at_ns);
  return Number(Handle::kChannel, mine->generation, PlaceOf(collective), channel);
}

std::optional<RunRecord> KernelTimes::ChannelEnded(uint64_t channel, uint64_t at_ns) {
  const std::lock_guard lock(mutex_);
  Collective* const mine = Is(channel, Handle::kChannel) ? Of(channel) : nullptr;
  const uint64_t bit = uint64_t{1} << ChannelOf(channel) % kChannels;
  if (mine == nullptr || (mine->began & bit) == 0) return std::nullopt;
  mine->ended |= bit;
  mine->end_ns = std::max(mine->end_ns, at_ns);
  if (std::popcount(mine->ended) < mine->channels) return std::nullopt;
  mine->under_way = false;
  if (mine->end_ns < mine->begin_ns) {
    ++lost_;
    return std::nullopt;
  }
  constexpr uint64_t kLongest = std::numeric_limits<uint32_t>::max();
  mine->record.wire_ns = static_cast<uint32_t>(std::min(mine->end_ns - mine->begin_ns, kLongest));
  return mine->record;
}

uint64_t KernelTimes::TakeLost() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lost_, 0);
}

}  // namespace bucketd::agent
