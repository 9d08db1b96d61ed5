#include "passes/pass/overlap/overlap_memory.h"

#include <algorithm>
#include <utility>

namespace bucketd::overlap {
namespace {

bool IsThereBefore(NodeKind kind) {
  return kind == NodeKind::kPlaceholder || kind == NodeKind::kGetAttr;
}

}  // namespace

StorageUses::StorageUses(const Graph& graph, const OverlapGraph& steps, bool until_start)
    : storages_(graph), allocates_(Index(steps.size()), 0) {
  for (NodeId n = 0; n < graph.size(); ++n) {
    storages_.Add(n);
    if (IsThereBefore(graph.kind(n))) before_ += OutputBytes(graph, n);
  }
  AddUses(graph, steps, until_start);
}

void StorageUses::AddUses(const Graph& graph, const OverlapGraph& steps, bool until_start) {
  std::vector<std::pair<Position, int32_t>> uses;
  for (Position v = 0; v < steps.size(); ++v) {
    for (const NodeId n : steps.nodes(v)) {
      if (!IsThereBefore(graph.kind(n))) allocates_[Index(v)] += storages_.own_bytes(n);
      Position until = v;
      if (!until_start && steps.kind(v) == StepKind::kStart) {
        until = steps.launches()[Index(steps.launch_of(v))].wait;
      }
      for (const NodeId x : graph.inputs(n)) {
        if (storages_.of(x) != Storages::kNone) uses.emplace_back(until, storages_.of(x));
      }
    }
  }
  std::sort(uses.begin(), uses.end());
  uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
  count_.assign(Index(storages_.size()), 0);
  for (const auto& [v, set] : uses) ++count_[Index(set)];
  used_by_ = MakeCsr(steps.size(), [&](auto add) {
    for (const auto& [v, set] : uses) add(v, set);
  });
  // A union that nobody uses holds nothing; parts are older than wholes.
  for (int32_t set = storages_.size(); set-- > 0;) {
    if (count_[Index(set)] == 0) continue;
    for (const int32_t part : storages_.parts(set)) ++count_[Index(part)];
  }
}

void MemoryTracker::Release(int32_t set) {
  stack_.push_back(set);
  while (!stack_.empty()) {
    const int32_t last = stack_.back();
    stack_.pop_back();
    if (--left_[Index(last)] > 0) continue;
    now_ -= uses_.storages_.bytes(last);
    for (const int32_t part : uses_.storages_.parts(last)) stack_.push_back(part);
  }
}

void MemoryTracker::Schedule(Position v) {
  now_ += uses_.allocates_[Index(v)];
  peak_ = std::max(peak_, now_);
  for (const int32_t set : uses_.used_by_.of(v)) Release(set);
}

MemoryBaseline::MemoryBaseline(const OverlapGraph& steps, const StorageUses& uses) {
  MemoryTracker tracker(uses);
  int64_t since_compute = 0;
  for (Position v = 0; v < steps.size(); ++v) {
    if (steps.kind(v) != StepKind::kOutput) tracker.Schedule(v);
    since_compute = std::max(since_compute, tracker.now());
    peak = std::max(peak, tracker.now());
    if (steps.kind(v) != StepKind::kCompute) continue;
    before_compute.push_back(since_compute);
    since_compute = tracker.now();
  }
}

PrefetchBudget::PrefetchBudget(const MemoryBaseline& baseline, int64_t allowed,
                               int64_t max_in_flight)
    : allowed_(allowed), max_in_flight_(max_in_flight) {
  const std::vector<int64_t>& base = baseline.before_compute;
  highest_from_.assign(base.size() + 1, 0);
  for (size_t i = base.size(); i-- > 0;) {
    highest_from_[i] = std::max(base[i], highest_from_[i + 1]);
  }
  while (Index(leaves_) < base.size()) leaves_ *= 2;
  tree_.resize(2 * Index(leaves_));
  for (size_t i = 0; i < base.size(); ++i) tree_[Index(leaves_) + i].highest = base[i];
  for (size_t i = Index(leaves_); i-- > 1;) tree_[i] = Join(tree_[2 * i], tree_[2 * i + 1]);
}

PrefetchBudget::Range PrefetchBudget::Query(int32_t from, int32_t to) const {
  Range left, right;
  for (int32_t l = from + leaves_, r = to + leaves_; l < r; l /= 2, r /= 2) {
    if (l % 2 == 1) left = Join(left, tree_[Index(l++)]);
    if (r % 2 == 1) right = Join(tree_[Index(--r)], right);
  }
  return Join(left, right);
}

bool PrefetchBudget::Exceeds(int32_t first_use, int64_t bytes) const {
  if (first_use <= next_) return false;
  // What is alive ends later and later, so the most of it is alive at the first node.
  if (alive_ + bytes > max_in_flight_) return true;
  if (highest_from_[Index(next_)] + alive_ + bytes <= allowed_) return false;
  const Range range = Query(next_, first_use);
  return range.highest + (alive_ - range.ends) + bytes > allowed_;
}

void PrefetchBudget::Add(int32_t first_use, int64_t bytes) {
  if (first_use <= next_) return;
  alive_ += bytes;
  int32_t i = leaves_ + first_use - 1;
  tree_[Index(i)].ends += bytes;
  tree_[Index(i)].highest += bytes;
  for (i /= 2; i > 0; i /= 2) tree_[Index(i)] = Join(tree_[Index(2 * i)], tree_[Index(2 * i + 1)]);
}

void PrefetchBudget::Advance() { alive_ -= tree_[Index(leaves_ + next_++)].ends; }

}  // namespace bucketd::overlap
