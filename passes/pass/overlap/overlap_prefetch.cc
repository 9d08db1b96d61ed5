// Which launches a window starts.
#include <algorithm>
#include <utility>

#include "passes/base/cancellation.h"
#include "passes/pass/overlap/overlap_scheduler.h"

namespace bucketd::overlap {
namespace {

// Launches that are passed over because their group has no time left, for each that is a candidate.
constexpr int64_t kPassedOver = 64;
// Steps of one search once all searches together have taken too many.
constexpr int32_t kShortSearch = 16;

}  // namespace

void OverlapScheduler::Prefetch(Position now, Window& window) {
  if (!window.any_left() || IsCancelled()) return;
  if (limits_.prefetch && !near_.empty()) {
    // A window inside this one finds it empty and makes its own.
    std::vector<Candidate> candidates = std::move(spare_);
    candidates.clear();
    FindCandidates(window, candidates);
    SortCandidates(candidates);
    for (const Candidate& candidate : candidates) {
      TryCandidate(candidate.launch, now, window);
      if (!window.any_left() || IsCancelled()) break;
    }
    spare_ = std::move(candidates);
  }
  result_.wasted_ps += window.least();
}

// Without room_for_what_starts even a launch that has to wait makes some, where it runs short.
bool OverlapScheduler::MayRunShort(const std::vector<Candidate>& candidates) const {
  int64_t most = 0, open = 0;
  for (const Candidate& c : candidates) {
    const int64_t bytes = launch(c.launch).bytes;
    most = std::max(most, bytes);
    if (!c.blocked) open += bytes;
  }
  return in_flight_bytes_ + open + most > options_.max_in_flight_bytes;
}

// The one group with time left and launches near enough; -1: several, or too many to look.
int32_t OverlapScheduler::OnlyGroup(const Window& window) const {
  int32_t only = -1;
  for (int32_t group = 0; group < static_cast<int32_t>(near_of_group_.size()); ++group) {
    if (near_of_group_[Index(group)].empty() || window.left(group) <= 0) continue;
    if (only >= 0) return -1;
    only = group;
  }
  return only;
}

void OverlapScheduler::FindCandidates(const Window& window, std::vector<Candidate>& candidates) {
  const int32_t only = OnlyGroup(window);
  const NumberSet& set = only >= 0 ? near_of_group_[Index(only)] : near_;
  const auto soon = static_cast<uint32_t>(next_compute_ + 1);
  int32_t left_to_find = Distance();
  int64_t looked_at = kPassedOver * left_to_find;
  ++round_;
  for (int32_t l = set.Next(0); l >= 0; l = set.Next(l + 1)) {
    if (looked_at-- == 0) break;
    --looks_left_;
    const LaunchSpan& next = launch(l);
    const int64_t left = window.left(next.group);
    if (left <= 0) continue;
    uint64_t urgency = urgency_[Index(l)];
    if (static_cast<uint32_t>(urgency) == soon) urgency = soon;
    const Rank rank = {urgency, -std::min(left, result_.exposed_ps[Index(l)]), next.start};
    const int32_t key = options_.prioritize_bucketing ? next.key : 0;
    const Position by = blocked_by_[Index(l)];
    const bool blocked = by >= 0 && !scheduled(by) && steps_.kind(by) == StepKind::kCompute;
    if (!blocked || !policy_.room_for_what_starts) candidates.push_back({rank, l, key, blocked});
    // What is blocked counts all the same.
    Rank& best = best_of_key_[Index(key)];
    int32_t& seen = best_seen_[Index(key)];
    if (seen != round_ || rank < best) best = rank;
    seen = round_;
    if (--left_to_find <= 0) break;
  }
  if (policy_.room_for_what_starts || MayRunShort(candidates)) return;
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [](const Candidate& c) { return c.blocked; }),
                   candidates.end());
}

// Launches of one key together, keys by their best.
void OverlapScheduler::SortCandidates(std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    if (a.key == b.key) return a.rank < b.rank;
    return best_of_key_[Index(a.key)] < best_of_key_[Index(b.key)];
  });
}

void OverlapScheduler::TryCandidate(int32_t l, Position now, Window& window) {
  if (window.left(launch(l).group) <= 0 || scheduled(launch(l).start)) return;
  if (OverMemory(l)) return;
  const bool fits = policy_.room_for_what_starts ? FindPath(l, now) && MakeRoom(l, now)
                                                 : MakeRoom(l, now) && FindPath(l, now);
  if (!fits) return;
  ScheduleCandidate(l, now, window);
}

bool OverlapScheduler::OverMemory(int32_t l) const {
  const LaunchSpan& next = launch(l);
  if (steps_.off_path(next.start)) return false;
  return memory_.now() + next.bytes > limits_.allowed_bytes ||
         budget_.Exceeds(steps_.first_compute(next.start), next.bytes);
}

// Completes what is hidden, oldest first, until the launch fits into what may be in flight.
bool OverlapScheduler::MakeRoom(int32_t l, Position now) {
  const int64_t bytes = launch(l).bytes;
  bool asked = false;
  while (options_.max_in_flight_bytes - in_flight_bytes_ < bytes) {
    if (flying_count_ == 0) return false;
    const int32_t oldest = Oldest();
    if (result_.exposed_ps[Index(oldest)] > 0 || HiddenBy(oldest, now)) return false;
    if (!policy_.room_for_what_starts && !asked && Needs(l, now)) return false;
    asked = true;
    Complete(oldest);
  }
  return true;
}

bool OverlapScheduler::Blocks(Position v) const {
  switch (steps_.kind(v)) {
    case StepKind::kCompute:
    case StepKind::kStart:
      return true;
    case StepKind::kWait:
      return result_.exposed_ps[Index(steps_.launch_of(v))] > 0;
    default:
      return steps_.stays_in_loop(v);
  }
}

// Whether a wait on the way to a launch would expose something, or end what `now` is to hide.
// The wait ends earlier launches of the group too.
bool OverlapScheduler::WaitBlocks(int32_t l, Position now) const {
  const auto ends = [&](int32_t other) {
    return result_.exposed_ps[Index(other)] > 0 || HiddenBy(other, now);
  };
  if (ends(l)) return true;
  if (!policy_.waits_end_others) return false;
  for (const int32_t other : in_flight_[Index(launch(l).group)].all) {
    if (other == l) break;
    if (flying(other) && ends(other)) return true;
  }
  return false;
}

// What the launch needs and is not scheduled goes to path_; false if something of it has to wait.
bool OverlapScheduler::FindPath(int32_t l, Position now) {
  const Position known = blocked_by_[Index(l)];
  if (known >= 0 && !scheduled(known) && Blocks(known)) return false;
  path_.clear();
  stack_.clear();
  ++search_;
  // False: there are many, and nothing is left to look at them with.
  const auto add_parents = [&](Position v) {
    const absl::Span<const Position> parents = steps_.parents(v);
    if (search_edges_left_ < 0 && parents.size() > Index(kShortSearch)) return false;
    search_edges_left_ -= static_cast<int64_t>(parents.size());
    for (const Position parent : parents) {
      if (scheduled(parent) || seen_[Index(parent)] == search_) continue;
      seen_[Index(parent)] = search_;
      stack_.push_back(parent);
    }
    return true;
  };
  if (!add_parents(launch(l).start)) return false;
  while (!stack_.empty()) {
    const Position v = stack_.back();
    stack_.pop_back();
    if (v == now || v == running_) return false;
    const bool wait = steps_.kind(v) == StepKind::kWait;
    if (Blocks(v)) {
      blocked_by_[Index(l)] = v;
      return false;
    }
    if (wait && !flying(steps_.launch_of(v))) {
      blocked_by_[Index(l)] = launch(steps_.launch_of(v)).start;
      return false;
    }
    if (wait && WaitBlocks(steps_.launch_of(v), now)) return false;
    if (--search_steps_left_ < 0 && path_.size() >= kShortSearch) return false;
    path_.push_back(v);
    if (!add_parents(v)) return false;
  }
  std::sort(path_.begin(), path_.end());
  return true;
}

// Whether `now` has to run before the launch. Yes, if that cannot be found out cheaply.
bool OverlapScheduler::Needs(int32_t l, Position now) {
  ++search_;
  stack_.clear();
  stack_.push_back(launch(l).start);
  for (int32_t steps = 0; !stack_.empty(); ++steps) {
    const Position v = stack_.back();
    stack_.pop_back();
    if (--search_steps_left_ < 0 && steps >= kShortSearch) return true;
    // The main line first: it is on top of the stack.
    for (const Position parent : steps_.parents(v)) {
      if (parent == now) return true;
      if (parent < now || scheduled(parent) || seen_[Index(parent)] == search_) continue;
      seen_[Index(parent)] = search_;
      stack_.push_back(parent);
    }
  }
  return false;
}

void OverlapScheduler::ScheduleCandidate(int32_t l, Position now, Window& window) {
  const std::vector<Position> path = path_;
  for (const Position v : path) {
    if (scheduled(v)) continue;
    if (steps_.kind(v) == StepKind::kWait) {
      Complete(steps_.launch_of(v));
    } else {
      ScheduleStep(v);
    }
  }
  const LaunchSpan& next = launch(l);
  if (scheduled(next.start) || missing_[Index(next.start)] > 0) return;
  Start(l);
  if (!steps_.off_path(next.start)) budget_.Add(steps_.first_compute(next.start), next.bytes);
  Hide(l, now, window);
}

}  // namespace bucketd::overlap
