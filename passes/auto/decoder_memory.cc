#include <algorithm>

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
  if (over_.empty() || over_.back().at != main_) over_.push_back({main_, 0});
  over_.back().bytes = std::max(over_.back().bytes, most_bytes - cap_);
}

// Where the step stands in program order: nothing before it is still to come.
LeaderId Decoder::Position() const {
  if (ready_.empty()) return main_;
  const LeaderId next = ready_.front();
  return done_[Index(next)] || (leaders_[Index(next)].is & kRootWork) != 0 ? main_
                                                                           : std::min(main_, next);
}

// Live bytes beyond what program order holds here and what gathers brought early.
int64_t Decoder::Extra() const {
  return std::max<int64_t>(0, memory_.live() - problem_.live[Index(Position())] - gathered_bytes_);
}

// Whether memory holds a root's result from here to where program order gathers it.
bool Decoder::RootFits(CollectiveId c, int64_t extra) {
  const Transfer& t = problem_.transfer(c);
  if (t.start <= main_) return true;
  if (memory_.live() + t.out_bytes > cap_) return false;
  const int64_t most = profile_.Max(std::min(Position(), t.start - 1), t.start);
  const int64_t grouped = most + extra + t.out_bytes;
  if (grouped > cap_) return false;
  return grouped + t.out_bytes <= cap_ || !settings_.packed_memory;
}

bool Decoder::TightMemory() { return memory_.live() + memory_.live() / 200 > cap_; }

void Decoder::AddGathered(CollectiveId c) {
  const Transfer& t = problem_.transfer(c);
  if (t.start <= main_) return;
  profile_.Add(main_, t.start, t.out_bytes);
  gathered_bytes_ += t.out_bytes;
  gathered_.push_back(c);
  std::push_heap(gathered_.begin(), gathered_.end(), [&](CollectiveId a, CollectiveId b) {
    return problem_.transfer(a).start > problem_.transfer(b).start;
  });
  next_drop_ = std::min(next_drop_, t.start);
}

// Gathers that program order, too, would have made by now.
void Decoder::DropGathered() {
  while (!gathered_.empty() && problem_.transfer(gathered_.front()).start <= main_) {
    std::pop_heap(gathered_.begin(), gathered_.end(), [&](CollectiveId a, CollectiveId b) {
      return problem_.transfer(a).start > problem_.transfer(b).start;
    });
    gathered_bytes_ -= problem_.transfer(gathered_.back()).out_bytes;
    gathered_.pop_back();
  }
  next_drop_ = gathered_.empty() ? problem_.size() : problem_.transfer(gathered_.front()).start;
}

// Before what would take memory over the cap: sends reductions off and waits for them.
void Decoder::MakeRoom(int64_t bytes) {
  for (int round = 0; bytes > 0 && memory_.live() + bytes > cap_ && round < kMaxRounds; ++round) {
    const int32_t earliest = EarliestOutstanding(true);
    bool launched = false;
    for (size_t g = 0; g < problem_.sink_keys.size() && !launched; ++g) {
      if (clock_.free_ps(static_cast<GroupId>(g)) > clock_.now_ps() && earliest >= 0) continue;
      for (const int32_t key : problem_.sink_keys[g]) {
        launched = launched || LaunchSinks(key, true);
      }
    }
    if (launched) continue;
    if (earliest < 0) return;
    Wait(earliest);
  }
}

}  // namespace bucketd::search
