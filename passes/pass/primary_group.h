// Which process groups carry a model's parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/ir/graph.h"
#include "passes/pass/tags.h"

namespace bucketd {

// How often each group was met, and which came first.
class GroupTally {
 public:
  explicit GroupTally(const Graph& graph) : count_(graph.groups().size()) {}
  void Meet(GroupId group) {
    if (count_[static_cast<size_t>(group)]++ == 0) order_.push_back(group);
  }
  const std::vector<GroupId>& order() const { return order_; }
  GroupId MostFrequent() const;  // the first on a tie; -1: none was met

 private:
  std::vector<int32_t> count_;
  std::vector<GroupId> order_;
};

// The group with most tagged all-gathers; where there are none, with most tagged reduce-scatters
// and all-reduces. The first in graph order on a tie, -1 if nothing is tagged. O(collectives).
GroupId PrimaryGroup(const Graph& graph, const Tags& tags);

}  // namespace bucketd
