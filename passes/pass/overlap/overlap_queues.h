// The overlap scheduler's queues. Internal to the scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"

#include "passes/pass/overlap/overlap_graph.h"

namespace bucketd::overlap {

// A binary heap in a list, smallest first. How equal contents lie in the list depends on what was
// done before, as in Python's heapq, step by step: torch walks that list.
class ListHeap {
 public:
  bool empty() const { return list_.empty(); }
  uint64_t top() const { return list_.front(); }
  const std::vector<uint64_t>& list() const { return list_; }
  void Push(uint64_t key);
  void Pop();
  // Takes out what `taken` (one an element) marks and makes a heap of what is left.
  void Remove(const std::vector<bool>& taken);

 private:
  void Sink(size_t at);
  void Rise(size_t from, size_t at);

  std::vector<uint64_t> list_;
};

// Ready steps, those that some compute node needs apart from those that none does. A step may be
// pushed twice on the path: the better key comes first, and who pops looks whether it is scheduled.
class ReadyQueues {
 public:
  ReadyQueues(const OverlapGraph& steps, bool current);

  void Push(Position v, bool exposed_wait);

  bool on_path_empty() const { return on_path_.empty(); }
  Position on_path_head() const { return PositionOf(on_path_.top()); }
  void PopOnPath() { on_path_.pop(); }
  bool off_path_empty() const { return off_path_.empty(); }
  Position off_path_head() const { return PositionOf(off_path_.top()); }
  void PopOffPath() { off_path_.Pop(); }

  // Bytes of ready launches off the path that have this one's key.
  int64_t potential(int32_t launch) const;
  // A launch off the path has been started.
  void Started(int32_t launch);
  // The head has been popped: other ready launches off the path with its key that fit into
  // `max_bytes` beside it. Upstream: in the order of the heap's list, all of them looked at; else
  // by key, at most `max_looked_at`, which count against `looks_left`.
  std::vector<Position> TakeMates(Position head, int64_t max_bytes, int32_t max_looked_at,
                                  int64_t& looks_left, absl::FunctionRef<bool(Position)> scheduled);

 private:
  static Position PositionOf(uint64_t key) { return static_cast<Position>(key & 0x7fffffffu); }
  uint64_t OffPathKey(Position v) const {
    return (uint64_t{steps_.feeds_reduce_scatter(v) ? 0u : 1u} << 31) | static_cast<uint32_t>(v);
  }

  const OverlapGraph& steps_;
  const bool current_;
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> on_path_;
  ListHeap off_path_;
  std::vector<int64_t> potential_;               // one a key of launches
  std::vector<std::set<uint64_t>> ready_mates_;  // one a key; if current
};

}  // namespace bucketd::overlap
