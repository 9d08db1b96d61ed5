#include "passes/auto/order_replay.h"

#include <algorithm>

#include "passes/base/collectives.h"

namespace bucketd::search {
namespace {

enum State : uint8_t { kWaiting = 0, kOpen, kPutOff, kDone };

}  // namespace

OrderReplay::OrderReplay(const Problem& problem, int64_t limit)
    : problem_(problem), most_bytes_(limit), memory_(problem) {}

bool OrderReplay::HasPlace(const Batch& batch) const {
  if (problem_.transfer(batch.members[0]).pinned) return true;
  return batch.form == Form::kPackedOnCompute && Gathers(problem_.transfer(batch.members[0]).kind);
}

void OrderReplay::Reset(const Decoded& wishes) {
  out_.order.clear();
  out_.batches = wishes.batches;
  out_.figures = {0, problem_.peak_at_start};
  out_.replayed = true;
  const size_t groups = problem_.graph->groups().size();
  clock_.Reset(groups, internal::RatesOf(*problem_.costs));
  memory_.Reset();
  state_.assign(Index(problem_.size()), kWaiting);
  launch_.assign(out_.batches.size(), {});
  batch_of_.assign(problem_.transfers.size(), -1);
  outstanding_ = {};
  stack_.clear();
  wire_left_.assign(groups, 0);
  for (size_t b = 0; b < out_.batches.size(); ++b) {
    Batch& batch = out_.batches[b];
    batch.stalled = false;
    for (const CollectiveId c : batch.members) batch_of_[Index(c)] = static_cast<int32_t>(b);
    launch_[b].cost = CostOf(problem_, batch);
    launch_[b].has_place = late_ ? problem_.transfer(batch.members[0]).pinned : HasPlace(batch);
    wire_left_[Index(launch_[b].cost.work.group)] += launch_[b].cost.work.slot_ps;
  }
  compute_left_ps_ = problem_.total_ps();
  sure_ps_ = placed_ = 0;
}

const Decoded* OrderReplay::Run(const Decoded& wishes, int64_t cutoff_ps) {
  return Replay(wishes, most_bytes_, cutoff_ps, false);
}

const Decoded& OrderReplay::Late(const Decoded& order) {
  const int64_t limit = std::max(most_bytes_, order.figures.peak_bytes);
  const Decoded* late = Replay(order, limit, kNever, true);
  const bool holds = late != nullptr && late->figures.peak_bytes <= limit &&
                     late->figures.total_ps <= order.figures.total_ps;
  return holds ? *late : order;
}

const Decoded* OrderReplay::Replay(const Decoded& wishes, int64_t limit, int64_t cutoff_ps,
                                   bool late) {
  limit_ = limit;
  cutoff_ps_ = cutoff_ps;
  late_ = late;
  Reset(wishes);
  for (const Action& action : wishes.order) {
    if (!Take(action)) return nullptr;
    if (sure_ps_ > cutoff_ps_) {
      out_.figures.total_ps = sure_ps_;
      return &out_;
    }
  }
  if (!TakeRest()) return nullptr;
  out_.figures.total_ps = clock_.end_ps();
  return &out_;
}

bool OrderReplay::Take(const Action& action) {
  if (action.kind == Action::Kind::kLaunch) {
    return launch_[Index(action.id)].launched || Launch(action.id);
  }
  if (action.kind == Action::Kind::kWait) {
    if (!launch_[Index(action.id)].has_place || launch_[Index(action.id)].waited) return true;
    if (!launch_[Index(action.id)].launched && !Launch(action.id)) return false;
    TakeEnded();
    return Await(action.id);
  }
  if (state_[Index(action.id)] == kDone) return true;
  TakeEnded();
  if (state_[Index(action.id)] == kDone) return true;
  // What takes no time is worth no wait.
  if (problem_.cost[Index(action.id)] == 0 && !IsReady(action.id)) {
    state_[Index(action.id)] = kPutOff;
    return true;
  }
  return Place(action.id);
}

bool OrderReplay::IsReady(LeaderId leader) const {
  const absl::Span<const LeaderId> before = problem_.before.of(leader);
  return std::all_of(before.begin(), before.end(),
                     [&](LeaderId x) { return state_[Index(x)] == kDone; });
}

bool OrderReplay::PlaceInput(LeaderId input) {
  if (state_[Index(input)] == kDone) return true;
  const CollectiveId started = problem_.start_of[Index(input)];
  if (started >= 0) return Launch(batch_of_[Index(started)]);
  const CollectiveId waited = problem_.wait_of[Index(input)];
  if (waited < 0) return Place(input);
  const int32_t batch = batch_of_[Index(waited)];
  if (!launch_[Index(batch)].launched && !Launch(batch)) return false;
  return Await(batch);
}

// A wait, behind what is kept before it.
bool OrderReplay::Await(int32_t batch) {
  if (launch_[Index(batch)].has_place) {
    for (const CollectiveId c : out_.batches[Index(batch)].members) {
      if (!PlaceInputs(problem_.transfer(c).wait)) return false;
    }
  }
  const Launched& launch = launch_[Index(batch)];
  if (!launch.waited) {
    MakeRoom(memory_.NeededByWait(out_.batches[Index(batch)], launch.cost));
  }
  if (!launch.waited) Wait(batch);
  return true;
}

bool OrderReplay::PlaceInputs(LeaderId leader) {
  for (const LeaderId x : problem_.before.of(leader)) {
    if (!PlaceInput(x)) return false;
  }
  return true;
}

// With what it needs. On a stack of our own: of what was put off, long chains hang on one kernel.
bool OrderReplay::Place(LeaderId leader) {
  const size_t below = stack_.size();
  Open(leader);
  while (stack_.size() > below) {
    const LeaderId top = stack_.back().first;
    const absl::Span<const LeaderId> before = problem_.before.of(top);
    if (stack_.back().second < before.size()) {
      const LeaderId input = before[stack_.back().second++];
      if (state_[Index(input)] == kDone) continue;
      if (problem_.start_of[Index(input)] < 0 && problem_.wait_of[Index(input)] < 0) {
        Open(input);
      } else if (!PlaceInput(input)) {
        return false;
      }
      continue;
    }
    stack_.pop_back();
    MakeRoom(problem_.own_bytes[Index(top)]);
    Emit(top);
  }
  return true;
}

// No longer put off: else a wait for its inputs, or for memory, would run it before its turn.
void OrderReplay::Open(LeaderId leader) {
  state_[Index(leader)] = kOpen;
  stack_.emplace_back(leader, 0);
}

void OrderReplay::Emit(LeaderId leader) {
  ++placed_;
  out_.order.push_back({Action::Kind::kRun, leader});
  out_.figures.peak_bytes = std::max(out_.figures.peak_bytes, memory_.Run(leader));
  state_[Index(leader)] = kDone;
  const int64_t cost = problem_.cost[Index(leader)];
  compute_left_ps_ -= cost;
  clock_.Kernel(cost);
  sure_ps_ = std::max(sure_ps_, clock_.now_ps() + compute_left_ps_);
}

bool OrderReplay::Launch(int32_t id) {
  const Batch& batch = out_.batches[Index(id)];
  // What needs itself does so through a bucket.
  for (const CollectiveId c : batch.members) {
    uint8_t& state = state_[Index(problem_.transfer(c).start)];
    if (state == kOpen) return false;
    state = kOpen;
  }
  for (const CollectiveId c : batch.members) {
    if (!PlaceInputs(problem_.transfer(c).start)) return false;
  }
  TakeEnded();
  Launched& launch = launch_[Index(id)];
  MakeRoom(memory_.NeededByStart(batch, launch.cost));
  out_.order.push_back({Action::Kind::kLaunch, id});
  out_.figures.peak_bytes = std::max(out_.figures.peak_bytes, memory_.Start(batch, launch.cost));
  clock_.Kernel(launch.cost.work.copy_in_ps);
  launch.end_ps = clock_.Launch(launch.cost.work).end_ps;
  launch.launched = true;
  int64_t& left = wire_left_[Index(launch.cost.work.group)];
  left -= launch.cost.work.slot_ps;
  sure_ps_ = std::max(sure_ps_, launch.end_ps + left);
  placed_ += static_cast<int64_t>(batch.members.size());
  for (const CollectiveId c : batch.members) state_[Index(problem_.transfer(c).start)] = kDone;
  const Transfer& first = problem_.transfer(batch.members[0]);
  const bool may_come_early = !late_ || (first.use != Use::kInline && memory_.WaitFrees(batch));
  if (!launch.has_place && first.wait >= 0 && may_come_early) {
    outstanding_.push({launch.end_ps, out_.order.size(), id});
  }
  return true;
}

void OrderReplay::Wait(int32_t id) {
  Launched& launch = launch_[Index(id)];
  Batch& batch = out_.batches[Index(id)];
  launch.waited = true;
  batch.stalled = launch.end_ps > clock_.now_ps();
  out_.order.push_back({Action::Kind::kWait, id});
  out_.figures.peak_bytes = std::max(out_.figures.peak_bytes, memory_.Wait(batch, launch.cost));
  clock_.WaitUntil(launch.end_ps);
  clock_.Kernel(launch.cost.work.copy_out_ps);
  placed_ += static_cast<int64_t>(batch.members.size());
  for (const CollectiveId c : batch.members) state_[Index(problem_.transfer(c).wait)] = kDone;
  for (const CollectiveId c : batch.members) RunPutOff(problem_.transfer(c).wait);
}

// What was put off for want of this one alone.
void OrderReplay::RunPutOff(LeaderId done) {
  const size_t below = stack_.size();
  stack_.emplace_back(done, 0);
  while (stack_.size() > below) {
    auto& [top, seen] = stack_.back();
    const absl::Span<const LeaderId> after = problem_.after.of(top);
    if (seen == after.size()) {
      stack_.pop_back();
      continue;
    }
    const LeaderId y = after[seen++];
    if (state_[Index(y)] != kPutOff || !IsReady(y)) continue;
    Emit(y);
    stack_.emplace_back(y, 0);
  }
}

// The first to end of what is to be waited for; null: there is none.
const OrderReplay::Outstanding* OrderReplay::FirstToEnd() {
  while (!outstanding_.empty() && launch_[Index(outstanding_.top().batch)].waited) {
    outstanding_.pop();
  }
  return outstanding_.empty() ? nullptr : &outstanding_.top();
}

// Waits for what has ended, as it was launched, which costs nothing.
void OrderReplay::TakeEnded() {
  if (late_) return;
  const int64_t now = clock_.now_ps();
  ended_.clear();
  for (const Outstanding* first = FirstToEnd(); first != nullptr && first->end_ps <= now;
       first = FirstToEnd()) {
    ended_.emplace_back(first->place, first->batch);
    outstanding_.pop();
  }
  std::sort(ended_.begin(), ended_.end());
  for (const auto& [place, batch] : ended_) Wait(batch);
}

// Before what would take memory over the limit: waits for what ends first.
void OrderReplay::MakeRoom(int64_t bytes) {
  while (bytes > 0 && memory_.live() + bytes > limit_) {
    const Outstanding* first = FirstToEnd();
    if (first == nullptr) return;
    Wait(first->batch);
  }
}

// Whatever the order did not name.
bool OrderReplay::TakeRest() {
  for (size_t b = 0; b < launch_.size(); ++b) {
    const auto batch = static_cast<int32_t>(b);
    if (!launch_[b].launched && !Launch(batch)) return false;
  }
  for (size_t b = 0; b < launch_.size(); ++b) {
    const bool awaited = problem_.transfer(out_.batches[b].members[0]).wait >= 0;
    if (awaited && !Await(static_cast<int32_t>(b))) return false;
  }
  for (LeaderId l = 0; l < problem_.size(); ++l) {
    if (problem_.start_of[Index(l)] >= 0 || problem_.wait_of[Index(l)] >= 0) continue;
    if (state_[Index(l)] != kDone && !Place(l)) return false;
  }
  return true;
}

}  // namespace bucketd::search
