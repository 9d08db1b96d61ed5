#include <algorithm>
#include <array>
#include <cstdint>

#include "passes/auto/decoder.h"

namespace bucketd::search {
namespace {

// Rounds of making room before one kernel: a bound on time.
constexpr int kMaxRounds = 200;

}  // namespace

// So much was live here.
void Decoder::NoteLive(int64_t most_bytes) {
  out_.figures.peak_bytes = std::max(out_.figures.peak_bytes, most_bytes);
  if (most_bytes <= cap_) return;
  const LeaderId at = Reached();
  if (over_.empty() || over_.back().at != at) over_.push_back({at, 0});
  over_.back().bytes = std::max(over_.back().bytes, most_bytes - cap_);
}

// How far program order would be: at the main chain's next kernel or, behind its end, at the first
// kernel that is left. That may be much: of a forward whose last results are reduced, the last
// layer is leaf work, and memory is often at its peak there.
LeaderId Decoder::Reached() {
  if (main_ < problem_.size()) return main_;
  constexpr uint8_t kNoKernel = kStart | kWait | kRootWork;
  while (left_ < problem_.size() &&
         (done_[Index(left_)] != 0 || (leaders_[Index(left_)].is & kNoKernel) != 0)) {
    ++left_;
  }
  return left_;
}

// Where the step stands in program order: nothing before it is still to come.
LeaderId Decoder::Position() {
  const LeaderId reached = Reached();
  if (ready_.empty()) return reached;
  const LeaderId next = ready_.front();
  return done_[Index(next)] ? reached : std::min(reached, next);
}

// Live bytes beyond what program order holds here and what gathers brought early.
int64_t Decoder::Extra() {
  return std::max<int64_t>(0, memory_.live() - problem_.live[Index(Position())] - gathered_bytes_);
}

// Whether memory holds a launch of roots that takes so many bytes, together with the launches of
// pending reductions and what the next kernel makes.
bool Decoder::FitsNow(int64_t bytes) {
  const LeaderId position = Position();
  const int64_t next = position < problem_.size() ? problem_.own_bytes[Index(position)] : 0;
  return memory_.live() + pending_bytes_ + next + bytes <= cap_;
}

// Whether memory holds roots' results of so many bytes from here to where program order gathers the
// first of them. What fits also does with fewer bytes, or where program order gathers it sooner.
bool Decoder::FitsUntil(LeaderId start, int64_t bytes, int64_t extra) {
  const LeaderId position = Position();
  return start <= position || profile_.Max(position, start) + extra + bytes <= cap_;
}

// Both, of a root behind others whose launch takes `taken` bytes.
bool Decoder::RootFits(CollectiveId c, int64_t extra, int64_t taken) {
  const Transfer& t = problem_.transfer(c);
  return FitsNow(taken + t.launch_bytes) &&
         FitsUntil(t.start, settings_.packed_memory ? 2 * t.out_bytes : t.out_bytes, extra);
}

bool Decoder::TightMemory() const { return memory_.live() + Share(memory_.live(), kShort) > cap_; }

void Decoder::AddGathered(CollectiveId c) {
  const Transfer& t = problem_.transfer(c);
  const LeaderId reached = Reached();
  if (t.start <= reached) return;
  profile_.Add(reached, t.start, t.out_bytes);
  gathered_bytes_ += t.out_bytes;
  gathered_.emplace(t.start, c);
}

// Gathers that program order, too, would have made by now.
void Decoder::DropGathered() {
  const LeaderId reached = Reached();
  while (!gathered_.empty() && gathered_.top().first <= reached) {
    gathered_bytes_ -= problem_.transfer(gathered_.top().second).out_bytes;
    gathered_.pop();
  }
}

// Before what would take memory over the cap: sends reductions off and waits for them.
void Decoder::MakeRoom(int64_t bytes) {
  for (int round = 0;
       bytes > 0 && memory_.live() + pending_bytes_ + bytes > cap_ && round < kMaxRounds; ++round) {
    const int32_t earliest = EarliestOutstanding(true);
    const int64_t free = earliest < 0 ? kNever : clock_.now_ps();
    const size_t wire = wires_.First(0, [&](const std::array<int64_t, kOfWire>& row) {
      return row[kPending] < kNever && row[kFree] <= free;
    });
    if (wire != SIZE_MAX) {
      for (const int32_t key : problem_.sink_keys[wire]) {
        if (LaunchSinks(key, true)) break;
      }
      continue;
    }
    if (earliest < 0) return;
    Wait(earliest);
  }
}

}  // namespace bucketd::search
