// Memory as the overlap scheduler sees it: a sum of live bytes, as torch's tracker keeps it, with
// storages that live as the referee says. It steers; what a plan needs is the simulator's to say.
// Internal to the scheduler.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/base/csr.h"
#include "passes/pass/overlap/overlap_graph.h"
#include "passes/plan/storage.h"

namespace bucketd::overlap {

// Who makes and who uses which storage. Immutable.
class StorageUses {
 public:
  // A collective's input lives until its wait; with `until_start` until its start.
  // O(nodes + edges).
  StorageUses(const Graph& graph, const OverlapGraph& steps, bool until_start);

 private:
  friend class MemoryTracker;
  void AddUses(const Graph& graph, const OverlapGraph& steps, bool until_start);

  Storages storages_;
  std::vector<int32_t> count_;      // uses of a set: steps, and unions that are used
  std::vector<int64_t> allocates_;  // one a step
  Csr used_by_;                     // sets that a step uses, each once
  int64_t before_ = 0;              // placeholders and attributes
};

// Live bytes while steps are scheduled, in any order that is legal.
class MemoryTracker {
 public:
  explicit MemoryTracker(const StorageUses& uses)
      : uses_(uses), left_(uses.count_), now_(uses.before_), peak_(uses.before_) {}

  // Each step but the output, once.
  void Schedule(Position v);
  int64_t now() const { return now_; }    // after frees
  int64_t peak() const { return peak_; }  // before them

 private:
  void Release(int32_t set);

  const StorageUses& uses_;
  std::vector<int32_t> left_;
  std::vector<int32_t> stack_;
  int64_t now_, peak_;
};

// The order before scheduling, replayed.
struct MemoryBaseline {
  MemoryBaseline(const OverlapGraph& steps, const StorageUses& uses);
  std::vector<int64_t> before_compute;  // highest from the compute node before to this one
  int64_t peak = 0;                     // highest of now()
};

// Bytes of prefetched collectives that are alive at each compute node.
class PrefetchBudget {
 public:
  // What `baseline` and its argument may reach; kUnlimited: no limit.
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;
  PrefetchBudget(const MemoryBaseline& baseline, int64_t allowed, int64_t max_in_flight);

  // Whether `bytes` more from the next compute node to `first_use` - 1 are too many. O(log).
  bool Exceeds(int32_t first_use, int64_t bytes) const;
  void Add(int32_t first_use, int64_t bytes);
  // The next compute node has been scheduled.
  void Advance();

 private:
  // Of a range of compute nodes: what ends in it, and the highest memory if nothing ends later.
  struct Range {
    int64_t ends = 0, highest = 0;
  };
  static Range Join(const Range& left, const Range& right) {
    return {left.ends + right.ends, std::max(left.highest + right.ends, right.highest)};
  }
  Range Query(int32_t from, int32_t to) const;

  int64_t allowed_, max_in_flight_;
  int32_t leaves_ = 1;
  std::vector<Range> tree_;
  std::vector<int64_t> highest_from_;  // of the baseline, from a compute node on
  int32_t next_ = 0;
  int64_t alive_ = 0;  // at next_
};

}  // namespace bucketd::overlap
