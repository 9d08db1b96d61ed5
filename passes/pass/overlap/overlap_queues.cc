#include "passes/pass/overlap/overlap_queues.h"

namespace bucketd::overlap {

void ListHeap::Push(uint64_t key) {
  list_.push_back(key);
  Rise(0, list_.size() - 1);
}

void ListHeap::Pop() {
  const uint64_t last = list_.back();
  list_.pop_back();
  if (list_.empty()) return;
  list_.front() = last;
  Sink(0);
}

void ListHeap::Remove(const std::vector<bool>& taken) {
  size_t kept = 0;
  for (size_t i = 0; i < list_.size(); ++i) {
    if (!taken[i]) list_[kept++] = list_[i];
  }
  if (kept == list_.size()) return;
  list_.resize(kept);
  for (size_t i = kept / 2; i-- > 0;) Sink(i);
}

// All the way to a leaf, along smaller children, then up to where it belongs.
void ListHeap::Sink(size_t at) {
  const size_t from = at;
  const uint64_t key = list_[at];
  for (size_t child = 2 * at + 1; child < list_.size(); child = 2 * at + 1) {
    if (child + 1 < list_.size() && list_[child + 1] <= list_[child]) ++child;
    list_[at] = list_[child];
    at = child;
  }
  list_[at] = key;
  Rise(from, at);
}

void ListHeap::Rise(size_t from, size_t at) {
  const uint64_t key = list_[at];
  while (at > from) {
    const size_t parent = (at - 1) / 2;
    if (list_[parent] <= key) break;
    list_[at] = list_[parent];
    at = parent;
  }
  list_[at] = key;
}

ReadyQueues::ReadyQueues(const OverlapGraph& steps, bool current)
    : steps_(steps), current_(current), potential_(Index(steps.key_count())) {
  if (current) ready_mates_.resize(Index(steps.key_count()));
}

void ReadyQueues::Push(Position v, bool exposed_wait) {
  const bool start = steps_.kind(v) == StepKind::kStart;
  if (!steps_.off_path(v)) {
    // What leads to a launch goes first, what can still be hidden last.
    uint64_t local = 1;
    if (steps_.kind(v) == StepKind::kWait) {
      local = exposed_wait ? 2 : 1;
    } else if (steps_.leads_to_launch(v)) {
      local = 0;
    }
    on_path_.push((static_cast<uint64_t>(steps_.first_compute(v)) << 33) | (local << 31) |
                  static_cast<uint32_t>(v));
    return;
  }
  off_path_.Push(OffPathKey(v));
  if (!start) return;
  const LaunchSpan& launch = steps_.launches()[Index(steps_.launch_of(v))];
  potential_[Index(launch.key)] += launch.bytes;
  if (current_) ready_mates_[Index(launch.key)].insert(OffPathKey(v));
}

int64_t ReadyQueues::potential(int32_t launch) const {
  return potential_[Index(steps_.launches()[Index(launch)].key)];
}

void ReadyQueues::Started(int32_t launch) {
  const LaunchSpan& started = steps_.launches()[Index(launch)];
  potential_[Index(started.key)] -= started.bytes;
  if (current_) ready_mates_[Index(started.key)].erase(OffPathKey(started.start));
}

std::vector<Position> ReadyQueues::TakeMates(Position head, int64_t max_bytes,
                                             int32_t max_looked_at, int64_t& looks_left,
                                             absl::FunctionRef<bool(Position)> scheduled) {
  const absl::Span<const LaunchSpan> launches = steps_.launches();
  const LaunchSpan& first = launches[Index(steps_.launch_of(head))];
  std::vector<Position> mates;
  int64_t bytes = first.bytes;
  const auto take = [&](Position v) {
    const int64_t more = launches[Index(steps_.launch_of(v))].bytes;
    if (bytes + more > max_bytes) return false;
    bytes += more;
    mates.push_back(v);
    return true;
  };
  if (current_) {
    for (const uint64_t key : ready_mates_[Index(first.key)]) {
      if (max_looked_at-- == 0) break;
      --looks_left;
      if (PositionOf(key) != head) take(PositionOf(key));
    }
    return mates;
  }
  std::vector<bool> taken(off_path_.list().size());
  for (size_t i = 0; i < taken.size(); ++i) {
    const Position v = PositionOf(off_path_.list()[i]);
    if (steps_.kind(v) != StepKind::kStart || scheduled(v)) continue;
    if (launches[Index(steps_.launch_of(v))].key == first.key) taken[i] = take(v);
  }
  off_path_.Remove(taken);
  return mates;
}

}  // namespace bucketd::overlap
