#include "server/plans/compute_queue.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace bucketd {
namespace {

constexpr int64_t kOfOneWeight = 1000;  // so that weights divide small costs, too

bool IsExpensive(const ComputeQueue::Work& work) {
  return work.cost_ms > ComputeQueue::kExpensiveMs;
}

// Whoever comes begins with what the most modest of those present has used, not with nothing.
template <typename Map, typename Key, typename IsRival>
void EnterInto(Map& uses, const Key& key, IsRival is_rival) {
  auto& use = uses[key];
  if (use.present++ > 0) return;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [other, its] : uses) {
    if (other != key && is_rival(other)) least = std::min(least, its.used);
  }
  use.used = least == std::numeric_limits<int64_t>::max() ? 0 : least;
}

template <typename Map, typename Key>
void LeaveFrom(Map& uses, const Key& key) {
  const auto found = uses.find(key);
  if (--found->second.present == 0) uses.erase(found);
}

}  // namespace

ComputeQueue::ComputeQueue(int slots, int max_queued)
    : slots_(static_cast<size_t>(slots)), max_queued_(static_cast<size_t>(max_queued)) {
  for (size_t i = 0; i < slots_; ++i) threads_.emplace_back([this] { Run(); });
}

ComputeQueue::~ComputeQueue() { Stop(); }

void ComputeQueue::Enter(const Work& work) {
  const Shares::Path& names = work.share.names;
  EnterInto(outer_, names[0], [](const std::string&) { return true; });
  EnterInto(inner_, names, [&](const Shares::Path& other) { return other[0] == names[0]; });
}

void ComputeQueue::Leave(const Work& work) {
  LeaveFrom(outer_, work.share.names[0]);
  LeaveFrom(inner_, work.share.names);
}

ComputeQueue::Work ComputeQueue::TakeOut(Queue::iterator at) {
  Work work = std::move(at->second);
  shares_.Remove(work.share.names, work.id);
  queue_.erase(at);
  return work;
}

ComputeQueue::Taken ComputeQueue::Submit(Work work) {
  Work displaced;  // dies without the lock
  const absl::MutexLock lock(&mutex_);
  if (stopped_) return {};
  if (running_.size() + queue_.size() >= slots_ + max_queued_) {
    const Id id = shares_.GivesWayTo(work.share.names);
    if (id == 0) return {};
    displaced = TakeOut(queue_.find(id));
    Leave(displaced);
  }
  Enter(work);
  shares_.Add(work.share.names, work.id);
  const Id id = work.id;
  queue_.emplace(id, std::move(work));
  CancelUnwanted();
  changed_.Signal();
  return {true, displaced.id};
}

bool ComputeQueue::Drop(Id id) {
  Work dropped;
  const absl::MutexLock lock(&mutex_);
  const auto found = queue_.find(id);
  if (found == queue_.end()) return false;
  dropped = TakeOut(found);
  Leave(dropped);
  return true;
}

void ComputeQueue::SetWanted(Id id, bool wanted) {
  const absl::MutexLock lock(&mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  found->second->wanted = wanted;
  CancelUnwanted();
}

// Where all slots are taken and something waits for one.
void ComputeQueue::CancelUnwanted() {
  if (queue_.empty() || running_.size() < slots_) return;
  for (auto& [id, running] : running_) {
    if (!running->wanted) running->cancelled = true;
  }
}

// A scan: there are a few hundred at most, and a computation takes milliseconds.
ComputeQueue::Queue::iterator ComputeQueue::Next() {
  const size_t expensive_slots = std::max<size_t>(1, slots_ - 1);
  auto best = queue_.end();
  std::tuple<int64_t, int64_t> least;
  for (auto at = queue_.begin(); at != queue_.end(); ++at) {
    const Work& work = at->second;
    if (IsExpensive(work) && expensive_running_ >= expensive_slots) continue;
    const std::tuple used(outer_[work.share.names[0]].used, inner_[work.share.names].used);
    if (best != queue_.end() && used >= least) continue;
    best = at;
    least = used;
  }
  return best;
}

void ComputeQueue::Run() {
  mutex_.Lock();
  while (!stopped_) {
    const auto next = Next();
    if (next == queue_.end()) {
      changed_.Wait(&mutex_);
      continue;
    }
    Work work = TakeOut(next);
    const WorkShare& share = work.share;
    outer_[share.names[0]].used += work.cost_ms * kOfOneWeight / share.outer_weight;
    inner_[share.names].used += work.cost_ms * kOfOneWeight / share.inner_weight;
    if (IsExpensive(work)) ++expensive_running_;
    const std::atomic<bool>& cancelled =
        (running_[work.id] = std::make_unique<Running>())->cancelled;
    CancelUnwanted();
    mutex_.Unlock();
    work.job(cancelled);
    work.job = nullptr;
    mutex_.Lock();
    running_.erase(work.id);
    if (IsExpensive(work)) --expensive_running_;
    Leave(work);
    changed_.SignalAll();  // an expensive one may have waited for this slot
  }
  mutex_.Unlock();
}

void ComputeQueue::Stop() {
  Queue dropped;
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
    dropped.swap(queue_);
    for (auto& [id, running] : running_) running->cancelled = true;
  }
  changed_.SignalAll();
  threads_.clear();  // joins
}

}  // namespace bucketd
