#include "passes/pass/overlap/overlap_scheduler.h"

#include <algorithm>

namespace bucketd::overlap {
namespace {

// Groups beyond this are looked at together.
constexpr int32_t kFewGroups = 16;
// A window inside a window inside ... opens nothing more at this depth.
constexpr int32_t kMaxDepth = 8;
// Candidates looked at, for each step of the graph, before a window looks at few: a step of 70B,
// where every window may look at all, takes less than 200.
constexpr int64_t kLooks = 512;
constexpr int32_t kFewLooks = 200;

}  // namespace

int64_t OverlapScheduler::Window::left(int32_t group) const {
  if (group == excluded_) return 0;
  for (const auto& [taken, left] : taken_) {
    if (taken == group) return left;
  }
  return ps_;
}

void OverlapScheduler::Window::Take(int32_t group, int64_t ps) {
  for (auto& [taken, left] : taken_) {
    if (taken != group) continue;
    left -= ps;
    return;
  }
  taken_.emplace_back(group, ps_ - ps);
}

bool OverlapScheduler::Window::any_left() const {
  if (ps_ > 0 && static_cast<int32_t>(taken_.size()) < groups_) return true;
  return std::any_of(taken_.begin(), taken_.end(), [](const auto& t) { return t.second > 0; });
}

int64_t OverlapScheduler::Window::least() const {
  if (groups_ <= 0) return 0;
  int64_t least = ps_;
  for (const auto& [group, left] : taken_) least = std::min(least, left);
  return least;
}

OverlapScheduler::OverlapScheduler(const OverlapGraph& steps, const StorageUses& uses,
                                   const MemoryBaseline& baseline, const PlanOptions& options,
                                   const OverlapPolicy& policy, const Limits& limits)
    : steps_(steps),
      options_(options),
      policy_(policy),
      limits_(limits),
      memory_(uses),
      budget_(baseline, limits.allowed_bytes, options.max_in_flight_bytes),
      ready_(steps, policy.queues_are_current),
      missing_(Index(steps.size())),
      scheduled_(Index(steps.size()), false),
      flying_(steps.launches().size(), false),
      in_flight_(Index(steps.group_count())),
      group_listed_(Index(steps.group_count()), false),
      mates_(Index(steps.key_count()), 0),
      near_(static_cast<int32_t>(steps.launches().size())),
      seen_(Index(steps.size()), 0),
      search_steps_left_(policy.search_steps * steps.size()),
      search_edges_left_(policy.search_steps * (steps.size() + steps.edges())),
      looks_left_(kLooks * steps.size()),
      best_of_key_(Index(steps.key_count())),
      best_seen_(Index(steps.key_count()), 0) {
  const absl::Span<const LaunchSpan> launches = steps.launches();
  const auto count = static_cast<int32_t>(launches.size());
  result_.order.reserve(Index(steps.size()));
  result_.hidden_by.resize(launches.size());
  if (steps.group_count() <= kFewGroups) {
    near_of_group_.assign(Index(steps.group_count()), NumberSet(count));
  }
  std::vector<int32_t> later;
  for (int32_t l = 0; l < count; ++l) {
    const LaunchSpan& launch = launches[Index(l)];
    result_.exposed_ps.push_back(launch.est_ps);
    blocked_by_.push_back(steps.last_compute(launch.start));
    const int32_t first_use = steps.first_compute(launch.start);
    uint64_t rank = 2;
    if (first_use == kNever) rank = steps.feeds_reduce_scatter(launch.start) ? 1 : 3;
    urgency_.push_back(rank << 32 | static_cast<uint32_t>(first_use));
    if (!launch.moves) continue;
    if (steps.off_path(launch.start) || first_use <= options.max_compute_prefetch) {
      near_.Insert(l);
      if (!near_of_group_.empty()) near_of_group_[Index(launch.group)].Insert(l);
    } else {
      later.push_back(l);
    }
  }
  comes_ = MakeCsr(steps.compute_count(), [&](auto add) {
    for (const int32_t l : later) add(steps.first_compute(launches[Index(l)].start), l);
  });
}

Schedule OverlapScheduler::Run() && {
  for (Position v = 0; v < steps_.size(); ++v) {
    missing_[Index(v)] = static_cast<int32_t>(steps_.parents(v).size());
    if (missing_[Index(v)] == 0) Push(v);
  }
  while (!ready_.on_path_empty() || !ready_.off_path_empty()) {
    if (flying_count_ > 0 && in_flight_bytes_ >= options_.max_in_flight_bytes) {
      Complete(Oldest());
      continue;
    }
    for (const Position v : TakeNext()) {
      if (!scheduled(v)) Handle(v);
    }
  }
  result_.peak_bytes = memory_.peak();
  return std::move(result_);
}

std::vector<Position> OverlapScheduler::TakeNext() {
  while (!ready_.on_path_empty() && scheduled(ready_.on_path_head())) ready_.PopOnPath();
  if (policy_.queues_are_current) {
    while (!ready_.off_path_empty() && scheduled(ready_.off_path_head())) ready_.PopOffPath();
  }
  if (ready_.off_path_empty() || !TakeOffPath(ready_.off_path_head())) {
    if (ready_.on_path_empty()) return {};
    const Position head = ready_.on_path_head();
    ready_.PopOnPath();
    return {head};
  }
  std::vector<Position> next = {ready_.off_path_head()};
  ready_.PopOffPath();
  if (steps_.kind(next.front()) != StepKind::kStart) return next;
  const std::vector<Position> mates =
      ready_.TakeMates(next.front(), limits_.max_off_path_bytes, Distance(), looks_left_,
                       [&](Position v) { return scheduled(v); });
  next.insert(next.end(), mates.begin(), mates.end());
  return next;
}

int32_t OverlapScheduler::Distance() const {
  const int32_t most = options_.max_collective_distance;
  return looks_left_ < 0 ? std::min(most, kFewLooks) : most;
}

// Only the head is looked at: what waits behind it is no more urgent.
bool OverlapScheduler::TakeOffPath(Position head) const {
  if (ready_.on_path_empty() || scheduled(head)) return true;
  const int32_t l = steps_.launch_of(head);
  if (steps_.kind(head) == StepKind::kWait) {
    return result_.exposed_ps[Index(l)] == 0 || memory_.now() > limits_.allowed_bytes;
  }
  if (steps_.kind(head) == StepKind::kStart) {
    return ready_.potential(l) >= limits_.max_off_path_bytes;
  }
  return steps_.feeds_reduce_scatter(head) && head <= last_on_path_;
}

void OverlapScheduler::Handle(Position v) {
  const int32_t l = steps_.launch_of(v);
  switch (steps_.kind(v)) {
    case StepKind::kStart:
      Start(l);
      break;
    case StepKind::kWait:
      Complete(l);
      break;
    case StepKind::kPlaceholder:
    case StepKind::kOutput:
      ScheduleStep(v);
      break;
    case StepKind::kCompute:
    case StepKind::kOther:
      RunOther(v);
      break;
  }
  if (!steps_.off_path(v)) {
    last_on_path_ = std::max(last_on_path_, v);
  } else if (!policy_.queues_are_current && steps_.kind(v) == StepKind::kStart) {
    ready_.Started(l);
  }
}

void OverlapScheduler::Push(Position v) {
  const bool wait = steps_.kind(v) == StepKind::kWait;
  ready_.Push(v, wait && result_.exposed_ps[Index(steps_.launch_of(v))] > 0);
}

void OverlapScheduler::ScheduleStep(Position v) {
  scheduled_[Index(v)] = true;
  result_.order.push_back(v);
  if (steps_.kind(v) != StepKind::kOutput) memory_.Schedule(v);
  for (const Position user : steps_.users(v)) {
    if (--missing_[Index(user)] == 0) Push(user);
  }
}

void OverlapScheduler::Start(int32_t l) {
  const LaunchSpan& started = launch(l);
  int64_t& exposed = result_.exposed_ps[Index(l)];
  if (started.mate_key >= 0) {
    // They will be one launch, and pay for it once.
    int32_t& mates = mates_[Index(started.mate_key)];
    if (mates++ > 0) exposed = std::max<int64_t>(0, exposed - started.latency_ps);
  }
  flying_[Index(l)] = true;
  ++flying_count_;
  in_flight_bytes_ += started.bytes;
  oldest_.push_back(l);
  InFlight& group = in_flight_[Index(started.group)];
  group.all.push_back(l);
  if (exposed > 0) {
    group.exposed.push_back(l);
    if (!group_listed_[Index(started.group)]) exposed_groups_.push_back(started.group);
    group_listed_[Index(started.group)] = true;
  }
  near_.Erase(l);
  if (!near_of_group_.empty()) near_of_group_[Index(started.group)].Erase(l);
  if (policy_.queues_are_current && steps_.off_path(started.start)) ready_.Started(l);
  ScheduleStep(started.start);
}

// A wait ends everything that its group started before.
void OverlapScheduler::Complete(int32_t l) {
  const LaunchSpan& completed = launch(l);
  std::deque<int32_t>& queue = in_flight_[Index(completed.group)].all;
  while (!queue.empty() && !flying(queue.front())) queue.pop_front();
  std::vector<int32_t> earlier;
  for (const int32_t other : queue) {
    if (other == l) break;
    if (flying(other)) earlier.push_back(other);
  }
  for (const int32_t other : earlier) {
    if (flying(other)) Complete(other);
  }
  if (!flying(l)) return;
  const int64_t exposed = result_.exposed_ps[Index(l)];
  if (exposed > 0 && depth_ < kMaxDepth) {
    ++depth_;
    Window window(exposed, completed.group, steps_.group_count());
    HideInFlight(completed.wait, window);
    Prefetch(completed.wait, window);
    --depth_;
    if (!flying(l)) return;
  }
  flying_[Index(l)] = false;
  --flying_count_;
  in_flight_bytes_ -= completed.bytes;
  if (completed.mate_key >= 0) --mates_[Index(completed.mate_key)];
  ScheduleStep(completed.wait);
}

int32_t OverlapScheduler::Oldest() {
  while (!flying(oldest_.front())) oldest_.pop_front();
  return oldest_.front();
}

void OverlapScheduler::RunOther(Position v) {
  const bool compute = steps_.kind(v) == StepKind::kCompute;
  if (steps_.window_ps(v) > 0) {
    Window window(steps_.window_ps(v), -1, steps_.group_count());
    running_ = v;
    HideInFlight(v, window);
    Prefetch(v, window);
  }
  ScheduleStep(v);
  if (compute) NextCompute();
}

void OverlapScheduler::NextCompute() {
  budget_.Advance();
  ++next_compute_;
  const int64_t first_use = int64_t{next_compute_} + options_.max_compute_prefetch;
  if (first_use >= steps_.compute_count()) return;
  const auto at = static_cast<int32_t>(first_use);
  for (const int32_t l : comes_.of(at)) {
    if (scheduled(launch(l).start)) continue;
    near_.Insert(l);
    if (!near_of_group_.empty()) near_of_group_[Index(launch(l).group)].Insert(l);
  }
}

void OverlapScheduler::HideInFlight(Position by, Window& window) {
  size_t kept = 0;
  for (size_t i = 0; i < exposed_groups_.size(); ++i) {
    const int32_t group = exposed_groups_[i];
    std::deque<int32_t>& queue = in_flight_[Index(group)].exposed;
    while (!queue.empty() && !window.full() && window.left(group) > 0) {
      const int32_t l = queue.front();
      if (flying(l) && result_.exposed_ps[Index(l)] > 0) Hide(l, by, window);
      if (flying(l) && result_.exposed_ps[Index(l)] > 0) break;
      queue.pop_front();
    }
    group_listed_[Index(group)] = !queue.empty();
    if (!queue.empty()) exposed_groups_[kept++] = group;
  }
  exposed_groups_.resize(kept);
}

void OverlapScheduler::Hide(int32_t l, Position by, Window& window) {
  int64_t& exposed = result_.exposed_ps[Index(l)];
  const int32_t group = launch(l).group;
  const int64_t hidden = std::min(exposed, window.left(group));
  exposed -= hidden;
  window.Take(group, hidden);
  result_.hidden_by[Index(l)].push_back(by);
  // Nothing is gained by waiting later any more: its place in the queue says so from now on.
  const bool refresh = policy_.waits_move_up && exposed == 0 && hidden > 0;
  if (refresh && flying(l) && !steps_.off_path(launch(l).wait)) Push(launch(l).wait);
}

// Only the newest can be `v`, or those that a window inside v's has added.
bool OverlapScheduler::HiddenBy(int32_t l, Position v) const {
  const std::vector<Position>& by = result_.hidden_by[Index(l)];
  const size_t looked_at = std::min<size_t>(by.size(), 64);
  return std::find(by.rbegin(), by.rbegin() + static_cast<std::ptrdiff_t>(looked_at), v) !=
         by.rbegin() + static_cast<std::ptrdiff_t>(looked_at);
}

}  // namespace bucketd::overlap
