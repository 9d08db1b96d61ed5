#include "passes/pass/overlap/overlap_memory.h"

#include <algorithm>
#include <utility>

namespace bucketd::schedule_overlap {

StorageUses::StorageUses(const Graph& graph, const OverlapGraph& steps, bool until_start) {
  allocates_.assign(Index(steps.size()), 0);
  AddSets(graph);
  AddUses(graph, steps, until_start);
}

int32_t StorageUses::AddStorage(int64_t bytes, bool releasable) {
  bytes_.push_back(bytes);
  releasable_.push_back(releasable);
  child_begin_.push_back(static_cast<int32_t>(children_.size()));
  return static_cast<int32_t>(bytes_.size()) - 1;
}

// Its aliases' sets, and as many storages of its own as it has outputs if `own`.
int32_t StorageUses::Union(const Graph& graph, NodeId n, bool own) {
  const bool before =
      graph.kind(n) == NodeKind::kPlaceholder || graph.kind(n) == NodeKind::kGetAttr;
  const bool stays = graph.role(n) == Role::kParameter || graph.role(n) == Role::kBuffer;
  std::vector<int32_t> sets;
  for (const NodeId alias : graph.alias_of(n)) {
    if (set_of_[Index(alias)] >= 0) sets.push_back(set_of_[Index(alias)]);
  }
  if (own) {
    for (const TensorType& tensor : graph.outputs(n)) {
      sets.push_back(AddStorage(tensor.bytes, !stays));
      if (before) before_ += tensor.bytes;
    }
  }
  if (sets.empty()) return -1;
  if (sets.size() == 1) return sets.front();
  const int32_t set = AddStorage(0, false);
  children_.insert(children_.end(), sets.begin(), sets.end());
  return set;
}

void StorageUses::AddSets(const Graph& graph) {
  set_of_.assign(Index(graph.size()), -1);
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (graph.kind(n) == NodeKind::kOutput) continue;
    if (graph.kind(n) == NodeKind::kGetitem && !graph.inputs(n).empty()) {
      const NodeId source = graph.inputs(n).front();
      const int32_t set = set_of_[Index(source)];
      const auto outputs = static_cast<int32_t>(graph.outputs(source).size());
      // The storages of an op with several outputs come right before their union.
      const bool of_its_own = graph.alias_of(source).empty() && outputs > 1;
      set_of_[Index(n)] = of_its_own && graph.getitem_index(n) < outputs
                              ? set - outputs + graph.getitem_index(n)
                              : set;
      continue;
    }
    const bool own = graph.alias_of(n).empty() || graph.kind(n) == NodeKind::kCollective;
    set_of_[Index(n)] = Union(graph, n, own);
  }
  child_begin_.push_back(static_cast<int32_t>(children_.size()));
}

void StorageUses::AddUses(const Graph& graph, const OverlapGraph& steps, bool until_start) {
  std::vector<std::pair<Position, int32_t>> uses;
  for (Position v = 0; v < steps.size(); ++v) {
    for (const NodeId n : steps.nodes(v)) {
      const NodeKind kind = graph.kind(n);
      const bool own = graph.alias_of(n).empty() || kind == NodeKind::kCollective;
      if (own && kind != NodeKind::kPlaceholder && kind != NodeKind::kGetAttr &&
          kind != NodeKind::kGetitem) {
        for (const TensorType& tensor : graph.outputs(n)) allocates_[Index(v)] += tensor.bytes;
      }
      Position until = v;
      if (!until_start && steps.kind(v) == StepKind::kStart) {
        until = steps.launches()[Index(steps.launch_of(v))].wait;
      }
      for (const NodeId x : graph.inputs(n)) {
        if (set_of_[Index(x)] >= 0) uses.emplace_back(until, set_of_[Index(x)]);
      }
    }
  }
  std::sort(uses.begin(), uses.end());
  uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
  count_.assign(bytes_.size(), 0);
  use_begin_.assign(Index(steps.size()) + 1, 0);
  used_by_.reserve(uses.size());
  for (const auto& [v, set] : uses) {
    ++count_[Index(set)];
    ++use_begin_[Index(v) + 1];
    used_by_.push_back(set);
  }
  for (size_t i = 1; i < use_begin_.size(); ++i) use_begin_[i] += use_begin_[i - 1];
  // A union that nobody uses holds nothing; parts are older than wholes.
  for (size_t set = bytes_.size(); set-- > 0;) {
    if (count_[set] == 0) continue;
    for (int32_t i = child_begin_[set]; i < child_begin_[set + 1]; ++i) {
      ++count_[Index(children_[Index(i)])];
    }
  }
}

void MemoryTracker::Release(int32_t set) {
  stack_.push_back(set);
  while (!stack_.empty()) {
    const int32_t last = stack_.back();
    stack_.pop_back();
    if (--left_[Index(last)] > 0) continue;
    if (uses_.releasable_[Index(last)]) now_ -= uses_.bytes_[Index(last)];
    for (int32_t i = uses_.child_begin_[Index(last)]; i < uses_.child_begin_[Index(last) + 1];
         ++i) {
      stack_.push_back(uses_.children_[Index(i)]);
    }
  }
}

void MemoryTracker::Schedule(Position v) {
  now_ += uses_.allocates_[Index(v)];
  peak_ = std::max(peak_, now_);
  for (int32_t i = uses_.use_begin_[Index(v)]; i < uses_.use_begin_[Index(v) + 1]; ++i) {
    Release(uses_.used_by_[Index(i)]);
  }
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

}  // namespace bucketd::schedule_overlap
