// The graph in which every bucket found so far is one node: it must stay acyclic, or no order
// exists. Answers, while buckets grow one member after the other, whether one more member would
// close a cycle, by keeping a topological order and looking only at what stands between the
// members.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "passes/base/csr.h"
#include "passes/pass/schedule.h"
#include "passes/plan/plan.h"

namespace bucketd {

// One bucket is open at a time; it has no members at first. What one bucket costs is the nodes and
// edges between its first and its last member, in the order that is kept.
class QuotientDag {
 public:
  // `order`: of all items, topological. The arguments outlive the quotient.
  QuotientDag(const ItemGraph& items, absl::Span<const Step> order);

  // Whether no path leads from a member to this start or back. True while there are no members.
  bool Joins(int32_t start_item);
  // REQUIRES: the last question was Joins(start_item) and its answer true, or there are no members.
  // The start's only successor is the wait, whose only predecessor it is.
  void Add(int32_t start_item, int32_t wait_item);
  // Ends the open bucket and opens the next one. `merge`: its members are one node from now on.
  void Close(bool merge);

  // Nodes and edges looked at so far.
  int64_t work() const { return work_; }

 private:
  int32_t Rep(int32_t item) const { return rep_[static_cast<size_t>(item)]; }
  bool Marked(int32_t rep) const { return mark_[static_cast<size_t>(rep)] == epoch_; }
  // Calls f(predecessor) until it returns true; whether it did.
  template <typename F>
  bool AnyBefore(int32_t rep, F f);
  void ScanTo(int32_t position);
  bool JoinsEarlier(int32_t start, int32_t position);
  void Merge();

  const ItemGraph& items_;
  // Items, then merged buckets. A merged item's rep is its bucket.
  std::vector<int32_t> rep_, at_, order_;  // order_: reps by position, -1 where nothing stands
  Csr bucket_items_;

  // Of the open bucket. Positions from first_ to scanned_ hold marks: members and what they reach.
  std::vector<int32_t> mark_, trial_, member_;  // by rep, the epoch in which it was so
  int32_t epoch_ = 1, trial_epoch_ = 0;
  std::vector<int32_t> members_, member_waits_, promoted_;
  int32_t first_ = 0, last_ = 0, scanned_ = 0;
  int64_t work_ = 0;
};

}  // namespace bucketd
