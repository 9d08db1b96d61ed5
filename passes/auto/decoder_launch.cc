#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "passes/auto/decoder.h"
#include "passes/base/collectives.h"

namespace bucketd::search {
namespace {

// Launches a wire may get between two kernels: a bound on time, above what any order wants.
constexpr int kMaxLaunches = 64;

}  // namespace

// Between two kernels, the next of which takes so long: takes what has ended, launches what is due.
void Decoder::Boundary(int64_t next_ps) {
  TakeEnded();
  while (!post_.empty()) {
    const LeaderId l = post_.PopFront();
    if (!done_[Index(l)]) Emit(l);
  }
  for (size_t i = 0; i < inline_ready_.size(); ++i) {
    const CollectiveId c = inline_ready_[i];
    if (batch_of_[Index(c)] < 0) Launch({c});
  }
  inline_ready_.clear();
  if (!gathered_.empty()) DropGathered();
  for (size_t g = NextWire(0, next_ps); g != SIZE_MAX; g = NextWire(g + 1, next_ps)) {
    FeedWire(static_cast<GroupId>(g), next_ps);
  }
}

// Waits for what has ended, group by group.
void Decoder::TakeEnded() {
  const auto ended = [&](const std::array<int64_t, 2>& row) {
    return std::min(row[0], row[1]) <= clock_.now_ps();
  };
  for (size_t g = ends_.First(0, ended); g != SIZE_MAX; g = ends_.First(g + 1, ended)) {
    for (const size_t q : {2 * g, 2 * g + 1}) {
      Queue& queue = outstanding_[q];
      while (!queue.empty()) {
        const int32_t batch = queue.front();
        const Launched& launch = launched_[Index(batch)];
        if (!launch.waited && launch.end_ps > clock_.now_ps()) break;
        ++queue.head;
        if (!launch.waited) Wait(batch);
      }
      NoteEnd(q);
    }
  }
}

// The first group from `from` on whose wire may get something before the next boundary: FeedWire()
// does nothing for those between.
size_t Decoder::NextWire(size_t from, int64_t next_ps) {
  const int64_t horizon = clock_.now_ps() + next_ps;
  const bool all_due = settings_.slack_ps >= kForever;
  const int64_t latest =
      all_due ? kNever - 1 : settings_.slack_ps + next_ps + problem_.ideal_ps[Index(main_)];
  const int64_t pending = PendingThatGoes();
  return wires_.First(from, [&](const std::array<int64_t, kOfWire>& row) {
    if (row[kFree] > horizon) return false;
    if (row[kPending] <= pending) return true;
    return row[kLatest] <= latest &&
           FitsUntil(static_cast<LeaderId>(row[kRootStart]), row[kRootBytes], Extra());
  });
}

void Decoder::NoteRoots(GroupId group) {
  const int32_t key = NextRootKey(group);
  const CollectiveId head = key < 0 ? -1 : HeadRoot(key);
  const size_t wire = Index(group);
  wires_.Set(wire, kLatest, head < 0 ? kNever : latest_start_[Index(head)]);
  wires_.Set(wire, kRootStart, head < 0 ? kNever : problem_.transfer(head).start);
  wires_.Set(wire, kRootBytes, head < 0 ? kNever : problem_.transfer(head).out_bytes);
}

void Decoder::FeedWire(GroupId group, int64_t next_ps) {
  const std::vector<int32_t>& sink_keys = problem_.sink_keys[Index(group)];
  for (int i = 0; i < kMaxLaunches; ++i) {
    const int64_t free = clock_.free_ps(group);
    if (free > clock_.now_ps() + next_ps) return;
    const int32_t root = NextRootKey(group);
    int32_t sink = -1;
    const int64_t ready = PendingThatGoes();
    for (const int32_t key : sink_keys) {
      if (sink < 0 && PendingOf(key) <= ready) sink = key;
    }
    const bool root_first = !(sink >= 0 && settings_.sinks_first);
    if (root >= 0 && root_first && IsDue(root, sink, free, next_ps) && LaunchRoots(root, false)) {
      continue;
    }
    if (sink >= 0 && LaunchSinks(sink, TightMemory())) continue;
    return;
  }
}

// The key whose next gather must begin first; -1: there is none.
int32_t Decoder::NextRootKey(GroupId group) {
  int32_t root = -1;
  int64_t latest = kNever;
  for (const int32_t key : problem_.root_keys[Index(group)]) {
    const CollectiveId head = HeadRoot(key);
    if (head < 0) continue;
    if (root >= 0 && latest_start_[Index(head)] >= latest) continue;
    latest = latest_start_[Index(head)];
    root = key;
  }
  return root;
}

// Whether that key's gather must begin now, or would come too late behind the reductions.
bool Decoder::IsDue(int32_t root, int32_t sink, int64_t free_ps, int64_t next_ps) {
  if (settings_.slack_ps >= kForever) return true;
  const int64_t due =
      latest_start_[Index(HeadRoot(root))] + clock_.now_ps() - problem_.ideal_ps[Index(main_)];
  if (due - clock_.now_ps() - next_ps <= settings_.slack_ps) return true;
  if (sink < 0) return false;
  const int64_t alpha = problem_.transfer(pending_[Index(sink)].front()).alpha_ps;
  const int64_t until_due = due - std::max(free_ps, clock_.now_ps()) - alpha;
  return pending_ps_[Index(sink)] > until_due && settings_.reduce_cap_ps > until_due;
}

CollectiveId Decoder::HeadRoot(int32_t key) {
  const std::vector<CollectiveId>& roots = problem_.roots[Index(key)];
  size_t& head = root_head_[Index(key)];
  while (head < roots.size() && batch_of_[Index(roots[head])] >= 0) ++head;
  return head < roots.size() ? roots[head] : -1;
}

bool Decoder::FixedBucketFits(CollectiveId head, size_t from) {
  const std::vector<CollectiveId>& roots = problem_.roots[Index(problem_.transfer(head).key)];
  const int32_t bucket = partition_->bucket_of[Index(head)];
  int64_t launch_bytes = 0, out_bytes = 0;
  LeaderId first = problem_.size();
  for (size_t i = from; i < roots.size(); ++i) {
    if (partition_->bucket_of[Index(roots[i])] != bucket) break;
    if (batch_of_[Index(roots[i])] >= 0) continue;
    const Transfer& t = problem_.transfer(roots[i]);
    launch_bytes += t.launch_bytes;
    out_bytes += t.out_bytes;
    first = std::min(first, t.start);
  }
  return FitsNow(launch_bytes) && FitsUntil(first, out_bytes, Extra());
}

// The bucket that begins with the key's first root.
bool Decoder::LaunchRoots(int32_t key, bool force) {
  const CollectiveId head = HeadRoot(key);
  if (head < 0) return false;
  const size_t next = root_head_[Index(key)] + 1;
  if (!force && !RootFits(head, Extra(), 0)) return false;
  if (!force && partition_ != nullptr && !FixedBucketFits(head, next - 1)) return false;
  std::vector<CollectiveId> members =
      partition_ != nullptr ? FixedMembers(head, next) : MembersInTime(head, next);
  for (const CollectiveId c : members) {
    for (const LeaderId x : problem_.root_work.of(c)) {
      if (!done_[Index(x)]) Emit(x);
    }
  }
  Launch(std::move(members));
  return true;
}

// The head, and of the roots from `next` on those that were decided to go with it.
std::vector<CollectiveId> Decoder::FixedMembers(CollectiveId head, size_t next) {
  const std::vector<CollectiveId>& roots = problem_.roots[Index(problem_.transfer(head).key)];
  std::vector<CollectiveId> members = {head};
  AddGathered(head);
  for (; problem_.transfer(head).mergeable && next < roots.size(); ++next) {
    const CollectiveId c = roots[next];
    if (batch_of_[Index(c)] >= 0) continue;
    if (partition_->bucket_of[Index(c)] != partition_->bucket_of[Index(head)]) break;
    members.push_back(c);
    AddGathered(c);
  }
  return members;
}

// The head, and as many of the roots from `next` on as end in time and fit.
std::vector<CollectiveId> Decoder::MembersInTime(CollectiveId head, size_t next) {
  const Transfer& first = problem_.transfer(head);
  const std::vector<CollectiveId>& roots = problem_.roots[Index(first.key)];
  const int64_t extra = Extra();
  const int64_t begin = std::max(clock_.free_ps(first.group), clock_.now_ps()) + first.alpha_ps;
  int64_t wire = first.wire_ps, taken = first.launch_bytes;
  // By when the bucket must end; later if the wire is what all wait for.
  const std::vector<int64_t>& ideal = problem_.ideal_ps;
  const int64_t until_need = ideal[Index(first.need)] - ideal[Index(main_)];
  const int64_t need = std::max(clock_.now_ps() + until_need, begin + wire);
  const int64_t excess = wire_left_[Index(first.group)] - Remaining();
  const auto in_time = [&](int64_t wire_ps) {
    if (wire_ps > settings_.gather_cap_ps) return false;
    const int64_t lag = excess > 0 ? Share(excess, settings_.lag) : 0;
    return begin + wire_ps - need - lag <= settings_.late_ps;
  };
  std::vector<CollectiveId> members = {head};
  AddGathered(head);
  for (; first.mergeable && next < roots.size(); ++next) {
    const CollectiveId c = roots[next];
    const Transfer& t = problem_.transfer(c);
    if (batch_of_[Index(c)] >= 0) continue;
    const bool together = t.need == first.need;
    if ((!together && !in_time(wire + t.wire_ps)) || !RootFits(c, extra, taken)) break;
    wire += t.wire_ps;
    taken += t.launch_bytes;
    members.push_back(c);
    AddGathered(c);
  }
  return members;
}

// What is pending of a key, negative, as in wires_, which looks for the least: wire time or, with a
// partition, complete buckets. kNever: nothing.
int64_t Decoder::PendingOf(int32_t key) const {
  if (pending_[Index(key)].empty()) return kNever;
  return partition_ != nullptr ? -complete_[Index(key)] : -pending_ps_[Index(key)];
}

// A key's reductions may go now if PendingOf() is at most this.
int64_t Decoder::PendingThatGoes() const {
  if (TightMemory()) return kNever - 1;
  if (partition_ != nullptr) return -1;
  const int64_t left = Remaining() + deferred_ps_;
  return -std::min(settings_.batch_ps, Share(left, kBatchShare));
}

void Decoder::NotePending(GroupId group, int32_t key) {
  filled_.Set(Index(key), 0, pending_[Index(key)].empty() ? kNever : 0);
  int64_t least = kNever;
  for (const int32_t k : problem_.sink_keys[Index(group)]) least = std::min(least, PendingOf(k));
  wires_.Set(Index(group), kPending, least);
}

// Of all-reduces, whose results no room is kept for, as many go together as memory holds now.
bool Decoder::LaunchSinks(int32_t key, bool flush) {
  Queue& pending = pending_[Index(key)];
  if (pending.empty()) return false;
  if (partition_ != nullptr) return LaunchFixedSinks(key, flush);
  std::vector<CollectiveId> members;
  int64_t wire = 0, live = memory_.live();
  while (!pending.empty()) {
    const Transfer& t = problem_.transfer(pending.front());
    if (ReducesWhole(t.kind)) live += t.out_bytes;
    if (!members.empty() &&
        (!t.mergeable || wire + t.wire_ps > settings_.reduce_cap_ps || live > cap_)) {
      break;
    }
    wire += t.wire_ps;
    members.push_back(pending.front());
    ++pending.head;
  }
  pending_ps_[Index(key)] -= wire;
  for (const CollectiveId c : members) pending_bytes_ -= problem_.transfer(c).launch_bytes;
  NotePending(problem_.transfer(members[0]).group, key);
  Launch(std::move(members));
  return true;
}

// The first bucket that is complete; with `flush`, the first one as far as it has come.
bool Decoder::LaunchFixedSinks(int32_t key, bool flush) {
  Queue& pending = pending_[Index(key)];
  if (!flush && complete_[Index(key)] == 0) return false;
  int32_t bucket = partition_->bucket_of[Index(pending.front())];
  for (size_t i = pending.head; !flush && arriving_[Index(bucket)] > 0; ++i) {
    bucket = partition_->bucket_of[Index(pending.ids[i])];
  }
  if (arriving_[Index(bucket)] == 0) --complete_[Index(key)];
  std::vector<CollectiveId> members;
  size_t kept = pending.head;
  for (size_t i = pending.head; i < pending.ids.size(); ++i) {
    const CollectiveId c = pending.ids[i];
    if (partition_->bucket_of[Index(c)] == bucket) {
      members.push_back(c);
      pending_ps_[Index(key)] -= problem_.transfer(c).wire_ps;
      pending_bytes_ -= problem_.transfer(c).launch_bytes;
    } else {
      pending.ids[kept++] = c;
    }
  }
  pending.ids.resize(kept);
  NotePending(problem_.transfer(members[0]).group, key);
  Launch(std::move(members));
  return true;
}

// The form that costs least by the settings' weights.
void Decoder::ChooseForm(Batch& batch) {
  Form best = batch.form = Form::kGrouped;
  if (!MayPack(problem_, batch.members)) return;
  LaunchCost cost = CostOf(problem_, batch);
  for (const Form form : {Form::kPackedOnComm, Form::kPackedOnCompute}) {
    batch.form = form;
    const LaunchCost other = CostOf(problem_, batch);
    if (!IsCheaper(other, cost)) continue;
    cost = other;
    best = form;
  }
  batch.form = best;
}

bool Decoder::IsCheaper(const LaunchCost& a, const LaunchCost& b) {
  const auto compute = [](const LaunchCost& c) {
    return (c.work.copy_in_ps + c.work.copy_out_ps + c.work.charged_ps) / 1000;
  };
  const int64_t on_wire = a.work.slot_ps / 1000 - b.work.slot_ps / 1000;
  const int64_t on_compute = compute(a) - compute(b);
  if (on_wire >= 0 && on_compute >= 0) return false;
  if (on_wire <= 0 && on_compute <= 0) return true;
  return on_wire * settings_.wire_weight + on_compute * settings_.compute_weight < 0;
}

// Whether memory holds those of a packed bucket.
bool Decoder::BuffersFit(const Batch& batch) {
  int64_t in_bytes = 0, out_bytes = 0;
  LeaderId lowest = problem_.size();
  for (const CollectiveId c : batch.members) {
    in_bytes += problem_.transfer(c).in_bytes;
    out_bytes += problem_.transfer(c).out_bytes;
    lowest = std::min(lowest, problem_.transfer(c).start);
  }
  const CollectiveKind kind = problem_.transfer(batch.members[0]).kind;
  // An all-reduce's results lie where its inputs were copied to.
  if (ReducesWhole(kind)) out_bytes = 0;
  if (!Gathers(kind)) return memory_.live() + in_bytes + out_bytes <= cap_;
  return memory_.live() + 2 * out_bytes <= cap_ && FitsUntil(lowest, out_bytes, Extra());
}

void Decoder::Launch(std::vector<CollectiveId> members) {
  const auto id = static_cast<int32_t>(out_.batches.size());
  SortByPayload(problem_, members);
  Batch batch;
  batch.members = std::move(members);
  if (batch.members.size() > 1) {
    if (partition_ != nullptr) {
      batch.form = partition_->form_of[Index(partition_->bucket_of[Index(batch.members[0])])];
    }
    const bool decided = batch.form == Form::kGrouped ||
                         (batch.form != Form::kFree && MayPack(problem_, batch.members));
    if (!decided) ChooseForm(batch);
    if (batch.form != Form::kGrouped && !BuffersFit(batch)) batch.form = Form::kGrouped;
  }
  const LaunchCost cost = CostOf(problem_, batch);
  const GroupId group = problem_.transfer(batch.members[0]).group;
  for (const CollectiveId c : batch.members) {
    batch_of_[Index(c)] = id;
    done_[Index(problem_.transfer(c).start)] = 1;
    wire_left_[Index(group)] -= problem_.transfer(c).wire_ps;
  }
  out_.order.push_back({Action::Kind::kLaunch, id});
  NoteLive(memory_.Start(batch, cost));
  clock_.Kernel(cost.work.copy_in_ps);
  const int64_t end = clock_.Launch(cost.work).end_ps;
  wires_.Set(Index(group), kFree, end);
  sure_ps_ = std::max(sure_ps_, end + wire_left_[Index(group)]);
  launched_.push_back({end, false, cost});
  const Transfer& first = problem_.transfer(batch.members[0]);
  if (first.use == Use::kRoot) NoteRoots(group);
  if (first.wait >= 0 && !first.pinned) {
    const size_t queue = 2 * Index(group) + (first.use == Use::kSink ? 1 : 0);
    outstanding_[queue].ids.push_back(id);
    NoteEnd(queue);
  }
  out_.batches.push_back(std::move(batch));
  // Nothing above may be touched below: what becomes ready may launch in turn only at a boundary.
  const std::vector<CollectiveId>& launched = out_.batches.back().members;
  for (const CollectiveId c : launched) Finish(problem_.transfer(c).start);
}

void Decoder::Wait(int32_t batch_id) {
  Launched& launch = launched_[Index(batch_id)];
  if (launch.waited) return;
  launch.waited = true;
  out_.batches[Index(batch_id)].stalled = launch.end_ps > clock_.now_ps();
  clock_.WaitUntil(launch.end_ps);
  out_.order.push_back({Action::Kind::kWait, batch_id});
  // Work that becomes ready is taken later, so nothing is launched meanwhile.
  const Batch& batch = out_.batches[Index(batch_id)];
  NoteLive(memory_.Wait(batch, launch.cost));
  clock_.Kernel(launch.cost.work.copy_out_ps);
  for (const CollectiveId c : batch.members) done_[Index(problem_.transfer(c).wait)] = 1;
  for (const CollectiveId c : batch.members) Finish(problem_.transfer(c).wait);
}

// Among what nobody has waited for yet.
int32_t Decoder::EarliestOutstanding(bool sinks_only) {
  const auto end = [&](const std::array<int64_t, 2>& row) {
    return sinks_only ? row[1] : std::min(row[0], row[1]);
  };
  for (;;) {
    const int64_t earliest = end(ends_.least());
    if (earliest == kNever) return -1;
    const size_t group = ends_.First(0, [&](const auto& row) { return end(row) <= earliest; });
    const size_t q = 2 * group + (ends_.row(group)[0] > earliest || sinks_only ? 1 : 0);
    const int32_t batch = outstanding_[q].front();
    if (!launched_[Index(batch)].waited) return batch;
    ++outstanding_[q].head;
    NoteEnd(q);
  }
}

// Of group q / 2.
void Decoder::NoteEnd(size_t q) {
  const Queue& queue = outstanding_[q];
  ends_.Set(q / 2, q % 2, queue.empty() ? kNever : launched_[Index(queue.front())].end_ps);
}

}  // namespace bucketd::search
