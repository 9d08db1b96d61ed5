#include "passes/auto/decoder.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace bucketd::search {
Decoder::Decoder(const Problem& problem)
    : problem_(problem),
      leaders_(Index(problem.size()) + 1),
      wire_ps_(problem.graph->groups().size(), 0),
      memory_(problem),
      profile_(problem.live_at) {
  for (size_t i = 0; i < leaders_.size(); ++i) {
    Leader& leader = leaders_[i];
    leader.after = problem.after.begin[i];
    if (i + 1 == leaders_.size()) break;
    leader.cost_ps = problem.cost[i];
    leader.own_bytes = problem.own_bytes[i];
    leader.transfer = std::max(problem.start_of[i], problem.wait_of[i]);
    if (problem.start_of[i] >= 0) leader.is |= kStart;
    if (problem.wait_of[i] >= 0) leader.is |= kWait;
    if (problem.is_leaf[i]) leader.is |= kLeaf;
    if (problem.is_post[i]) leader.is |= kPost;
    if (problem.root_of[i] >= 0) leader.is |= kRootWork;
    fresh_missing_.push_back(problem.before.begin[i + 1] - problem.before.begin[i]);
  }
  for (const Transfer& t : problem.transfers) wire_ps_[Index(t.group)] += t.wire_ps;
}

const Decoded& Decoder::Decode(const Settings& settings, int64_t memory_cap,
                               const Partition* partition, int64_t cutoff_ps,
                               absl::Span<const Reserve> reserves) {
  cutoff_ps_ = cutoff_ps;
  Reset(settings, memory_cap, partition);
  for (const Reserve& r : reserves) profile_.Add(r.first, r.last, r.bytes);
  RunAll();
  if (GivenUp()) {
    out_.figures.total_ps = sure_ps_;
    return out_;
  }
  RunTail();
  for (LeaderId l = 0; l < problem_.size(); ++l) Force(l);
  out_.figures.total_ps = clock_.end_ps();
  return out_;
}

void Decoder::Reset(const Settings& settings, int64_t memory_cap, const Partition* partition) {
  const size_t leaders = Index(problem_.size());
  const size_t groups = problem_.graph->groups().size();
  const size_t transfers = problem_.transfers.size();
  settings_ = settings;
  cap_ = memory_cap;
  partition_ = partition;
  out_.order.clear();
  out_.batches.clear();
  out_.figures = {0, problem_.peak_at_start};
  placed_ = sure_ps_ = 0;
  clock_.Reset(groups, internal::RatesOf(*problem_.costs));
  compute_left_ps_ = problem_.total_ps();
  wire_left_ = wire_ps_;
  missing_ = fresh_missing_;
  done_.assign(leaders, 0);
  ready_.Reset(problem_.size());
  post_.Reset(problem_.size());
  root_work_.Reset(problem_.size());
  deferred_.Clear();
  stalls_ = {};
  deferred_ps_ = 0;
  deferred_sorted_ = false;
  main_ = 0;
  left_ = 0;
  batch_of_.assign(transfers, -1);
  launched_.clear();
  outstanding_.resize(2 * groups);
  for (Queue& queue : outstanding_) queue.Clear();
  ends_.Reset(groups, {kNever, kNever});
  wires_.Reset(groups, {0, kNever, kNever, kNever, kNever});
  inline_ready_.clear();
  pending_.resize(Index(problem_.keys));
  for (Queue& pending : pending_) pending.Clear();
  filled_.Reset(pending_.size(), {kNever});
  complete_.assign(Index(problem_.keys), 0);
  pending_ps_.assign(Index(problem_.keys), 0);
  if (partition != nullptr) arriving_ = partition->size_of;
  memory_.Reset();
  over_.clear();
  profile_.Reset();
  gathered_bytes_ = pending_bytes_ = 0;
  gathered_ = {};
  ResetRoots();
  for (LeaderId l = 0; l < problem_.size(); ++l) {
    if (missing_[Index(l)] == 0) BecomeReady(l);
  }
}

// A root must begin so early that all roots of its group that are needed later still can.
void Decoder::ResetRoots() {
  root_head_.assign(Index(problem_.keys), 0);
  latest_start_.assign(problem_.transfers.size(), kNever);
  std::vector<CollectiveId> roots;
  for (const std::vector<int32_t>& keys : problem_.root_keys) {
    roots.clear();
    for (const int32_t key : keys) {
      roots.insert(roots.end(), problem_.roots[Index(key)].begin(),
                   problem_.roots[Index(key)].end());
    }
    std::sort(roots.begin(), roots.end(), [&](CollectiveId a, CollectiveId b) {
      const LeaderId need_a = problem_.transfer(a).need, need_b = problem_.transfer(b).need;
      return need_a != need_b ? need_a < need_b : a < b;
    });
    int64_t next = kNever;
    for (size_t i = roots.size(); i-- > 0;) {
      const Transfer& t = problem_.transfer(roots[i]);
      int64_t work = 0;
      for (const LeaderId x : problem_.root_work.of(roots[i])) work += problem_.cost[Index(x)];
      next = std::min(problem_.ideal_ps[Index(t.need)], next) - Share(t.wire_ps, kLead);
      latest_start_[Index(roots[i])] = next - t.alpha_ps - work;
    }
    if (!roots.empty()) NoteRoots(problem_.transfer(roots[0]).group);
  }
}

void Decoder::RunAll() {
  while (!GivenUp()) {
    AdvanceMain();
    const LeaderId next = NextReady();
    const bool more = main_ < problem_.size();
    if (next < 0 && deferred_.empty() && !more) return;
    const bool blocked = more && missing_[Index(main_)] > 0 && (next < 0 || next > main_);
    if (blocked) {
      Unblock();
    } else if (next < 0 && deferred_.empty()) {
      Force(main_);
    } else if (next < 0 || !TryDefer(next)) {
      RunNext(next);
    }
  }
}

// Runs the first ready leader, or, without one, the first that was held back.
void Decoder::RunNext(LeaderId next) {
  const bool from_queue = next < 0;
  if (from_queue) next = TakeDeferred();
  if (done_[Index(next)]) return;
  Boundary(leaders_[Index(next)].cost_ps);
  if (!done_[Index(next)]) MakeRoom(leaders_[Index(next)].own_bytes);
  if (done_[Index(next)]) return;
  if (!from_queue) {
    // What was launched may have made an earlier one ready.
    if (NextReady() != next) return;
    ready_.PopFront();
  }
  Take(next);
}

void Decoder::RunTail() {
  for (;;) {
    Boundary(0);
    bool more = false;
    for (LeaderId next = NextReady(); next >= 0; next = NextReady()) {
      ready_.PopFront();
      Take(next);
      more = true;
    }
    const int32_t batch = EarliestOutstanding(false);
    const auto filled = [](const std::array<int64_t, 1>& row) { return row[0] == 0; };
    for (size_t key = filled_.First(0, filled); key != SIZE_MAX;
         key = filled_.First(key + 1, filled)) {
      const Transfer& next = problem_.transfer(pending_[key].front());
      if (batch >= 0 && memory_.live() + next.out_bytes > cap_) continue;
      more = LaunchSinks(static_cast<int32_t>(key), true) || more;
    }
    if (more) continue;
    if (batch >= 0) {
      Wait(batch);
    } else if (inline_ready_.empty() && post_.empty()) {
      return;
    }
  }
}

// The main chain cannot go on before a collective ends: fill the time, else wait.
void Decoder::Unblock() {
  Boundary(0);
  if (done_[Index(main_)] || missing_[Index(main_)] == 0) return;
  if (stalls_.of != main_) stalls_ = {main_, 0, {}};
  const absl::Span<const LeaderId> before_main = problem_.before.of(main_);
  for (; stalls_.seen < before_main.size(); ++stalls_.seen) {
    const LeaderId x = before_main[stalls_.seen];
    if (done_[Index(x)]) continue;
    const CollectiveId c = problem_.wait_of[Index(x)];
    const int32_t batch = c < 0 ? -1 : batch_of_[Index(c)];
    if (batch < 0 || missing_[Index(x)] > 0) {
      Force(c < 0 || batch >= 0 ? x : problem_.transfer(c).start);
      return;
    }
    stalls_.by_end.push({launched_[Index(batch)].end_ps, stalls_.seen, batch});
  }
  if (Fill()) return;
  while (launched_[Index(stalls_.first())].waited) stalls_.by_end.pop();
  const int32_t first = stalls_.first();
  const Launched& launch = launched_[Index(first)];
  const int64_t standing =
      std::max<int64_t>(0, launch.end_ps - clock_.now_ps()) + launch.cost.work.copy_out_ps;
  if (standing > 0) {
    const size_t before = out_.order.size();
    // Else a wire might idle while nobody looks.
    Boundary(standing);
    if (out_.order.size() != before && missing_[Index(main_)] == 0) return;
  }
  Wait(first);
}

// Runs something else while the main chain waits, if there is something.
bool Decoder::Fill() {
  const LeaderId filler = TakeFiller();
  if (filler < 0) return false;
  if (done_[Index(filler)]) return true;
  Boundary(leaders_[Index(filler)].cost_ps);
  if (!done_[Index(filler)]) Take(filler);
  return true;
}

// What was held back, a later kernel that memory lets come now, or what a root is computed from
// that could be launched here. -1: nothing.
LeaderId Decoder::TakeFiller() {
  if (!deferred_.empty()) return TakeDeferred();
  const LeaderId next = NextReady();
  if (next >= 0 &&
      (next <= main_ ||
       Extra() + leaders_[Index(next)].own_bytes + profile_.Max(main_, next + 1) <= cap_)) {
    return ready_.PopFront();
  }
  while (!root_work_.empty() && done_[Index(root_work_.front())]) root_work_.PopFront();
  if (root_work_.empty()) return -1;
  return RootFits(problem_.root_of[Index(root_work_.front())], Extra(), 0) ? root_work_.PopFront()
                                                                           : -1;
}

// Holds a weight gradient back, if there is room for it; runs the oldest ones that no longer fit.
bool Decoder::TryDefer(LeaderId next) {
  if ((leaders_[Index(next)].is & kLeaf) == 0 || main_ >= problem_.size()) return false;
  const int64_t cost = leaders_[Index(next)].cost_ps;
  if (!HasRoomFor(std::max<int64_t>(1, cost))) return false;
  if (!MayHold(memory_.HeldBy(next))) return false;
  ready_.PopFront();
  deferred_.ids.push_back(next);
  deferred_ps_ += cost;
  while (!deferred_.empty() && !HasRoomFor(deferred_ps_)) {
    const LeaderId oldest = TakeDeferred();
    if (done_[Index(oldest)]) continue;
    Boundary(leaders_[Index(oldest)].cost_ps);
    if (!done_[Index(oldest)]) MakeRoom(leaders_[Index(oldest)].own_bytes);
    if (!done_[Index(oldest)]) Emit(oldest);
  }
  return true;
}

// Whether so much may be held back here: near the end of the step.
bool Decoder::HasRoomFor(int64_t deferred_ps) const {
  return deferred_ps <= settings_.tail_queue_ps &&
         Remaining() <= kQueuesLeft * settings_.tail_queue_ps;
}

// Whether memory holds so much more while some queues pass.
bool Decoder::MayHold(int64_t bytes) {
  const int64_t extra = Extra() + bytes;
  if (extra + profile_.Max(main_, problem_.size()) <= cap_) return true;
  const std::vector<int64_t>& ideal = problem_.ideal_ps;
  const auto horizon =
      std::upper_bound(ideal.begin() + main_, ideal.end(),
                       ideal[Index(main_)] + kQueuesHeld * settings_.tail_queue_ps);
  const int32_t until =
      std::max(main_ + 1, std::min(problem_.size(), static_cast<int32_t>(horizon - ideal.begin())));
  return extra + profile_.Max(main_, until) <= cap_;
}

LeaderId Decoder::TakeDeferred() {
  // Behind the main chain nothing is held back any more, so once is enough.
  if (main_ >= problem_.size() && !deferred_sorted_ && deferred_.size() > 1) {
    deferred_sorted_ = true;
    std::stable_sort(deferred_.ids.begin() + static_cast<int64_t>(deferred_.head),
                     deferred_.ids.end(), [&](LeaderId a, LeaderId b) {
                       return problem_.own_bytes[Index(a)] > problem_.own_bytes[Index(b)];
                     });
  }
  const LeaderId l = deferred_.ids[deferred_.head++];
  deferred_ps_ -= leaders_[Index(l)].cost_ps;
  return l;
}

void Decoder::AdvanceMain() {
  while (main_ < problem_.size() && (done_[Index(main_)] || leaders_[Index(main_)].is != 0)) {
    ++main_;
  }
}

LeaderId Decoder::NextReady() {
  while (!ready_.empty() && done_[Index(ready_.front())]) ready_.PopFront();
  return ready_.empty() ? -1 : ready_.front();
}

void Decoder::Emit(LeaderId l) {
  const Leader& leader = leaders_[Index(l)];
  done_[Index(l)] = 1;
  out_.order.push_back({Action::Kind::kRun, l});
  NoteLive(memory_.Run(l));
  compute_left_ps_ -= leader.cost_ps;
  clock_.Kernel(leader.cost_ps);
  sure_ps_ = std::max(sure_ps_, clock_.now_ps() + compute_left_ps_);
  Finish(l);
}

// Whatever the leader is. REQUIRES: all its inputs are there.
void Decoder::Take(LeaderId l) {
  const Leader& leader = leaders_[Index(l)];
  if ((leader.is & kWait) != 0) {
    Wait(batch_of_[Index(leader.transfer)]);
    return;
  }
  if ((leader.is & kStart) == 0) {
    Emit(l);
    return;
  }
  const CollectiveId c = leader.transfer;
  const Transfer& t = problem_.transfer(c);
  if (t.use == Use::kInline) {
    Launch({c});
    return;
  }
  if (t.use == Use::kRoot) MakeRoom(t.launch_bytes);
  while (batch_of_[Index(c)] < 0) {
    if (!(t.use == Use::kRoot ? LaunchRoots(t.key, true) : LaunchSinks(t.key, true))) return;
  }
}

// Takes a leader and all that it still needs.
void Decoder::Force(LeaderId l) {
  if (done_[Index(l)]) return;
  stack_.emplace_back(l, 0);
  while (!stack_.empty()) {
    auto& [top, seen] = stack_.back();
    const absl::Span<const LeaderId> before = problem_.before.of(top);
    while (seen < before.size() && done_[Index(before[seen])]) ++seen;
    if (done_[Index(top)]) {
      stack_.pop_back();
    } else if (seen < before.size()) {
      stack_.emplace_back(before[seen], 0);
    } else {
      const LeaderId next = top;
      stack_.pop_back();
      Take(next);
    }
  }
}

void Decoder::BecomeReady(LeaderId l) {
  const Leader& leader = leaders_[Index(l)];
  if ((leader.is & (kStart | kWait)) == 0) {
    NumberSet& ready = (leader.is & kPost) != 0       ? post_
                       : (leader.is & kRootWork) != 0 ? root_work_
                                                      : ready_;
    ready.Insert(l);
    return;
  }
  if ((leader.is & kWait) != 0) {
    // Others are taken when their collective has ended.
    if (problem_.transfer(leader.transfer).pinned) ready_.Insert(l);
    return;
  }
  const CollectiveId c = leader.transfer;
  const Transfer& t = problem_.transfer(c);
  if (t.use == Use::kInline) inline_ready_.push_back(c);
  if (t.use != Use::kSink) return;
  pending_[Index(t.key)].ids.push_back(c);
  pending_ps_[Index(t.key)] += t.wire_ps;
  pending_bytes_ += t.launch_bytes;
  if (partition_ != nullptr && --arriving_[Index(partition_->bucket_of[Index(c)])] == 0) {
    ++complete_[Index(t.key)];
  }
  NotePending(t.group, t.key);
}

void Decoder::Finish(LeaderId l) {
  ++placed_;
  const int32_t end = leaders_[Index(l) + 1].after;
  for (int32_t i = leaders_[Index(l)].after; i < end; ++i) {
    const LeaderId x = problem_.after.all[Index(i)];
    if (--missing_[Index(x)] == 0) BecomeReady(x);
  }
}

}  // namespace bucketd::search
