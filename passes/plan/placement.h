// Where a plan puts every node. Internal to passes/plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/ir/graph.h"
#include "passes/plan/plan.h"

namespace bucketd::internal {

// Collects what is wrong with a plan: the first 50 lines are kept, the rest counted.
class Violations {
 public:
  void Add(std::string line);
  bool empty() const { return count_ == 0; }
  std::string Text() const;

 private:
  static constexpr int64_t kMax = 50;
  std::vector<std::string> lines_;
  int64_t count_ = 0;
};

inline constexpr int64_t kNowhere = -1;

// A place is comparable: smaller means earlier. A bucketed collective stands at its bucket's start;
// a bucketed wait where its bucket hands out that member, in payload order.
struct Placement {
  std::vector<int64_t> of_node;
  std::vector<BucketId> bucket_of;  // of a member or a member's wait, else -1

  int64_t place(NodeId n) const { return of_node[static_cast<size_t>(n)]; }
  BucketId bucket(NodeId n) const { return bucket_of[static_cast<size_t>(n)]; }
};

// Adds to `violations`, or returns RESOURCE_EXHAUSTED. REQUIRES: buckets, order and edges are
// legal.
absl::Status CheckInPlace(const Graph& graph, const Placement& placement, Violations& violations);

}  // namespace bucketd::internal
