// Which process groups carry a model's parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/ir/graph.h"
#include "passes/pass/tags.h"

namespace bucketd {

// The group with most tagged all-gathers; where there are none, with most tagged reduce-scatters
// and all-reduces. The first in graph order on a tie, -1 if nothing is tagged. O(collectives).
GroupId PrimaryGroup(const Graph& graph, const Tags& tags);

// What torch 2.13 takes for parameter traffic, by structure alone, for comparison: it cannot tell a
// parameter from a saved activation.
struct UpstreamTraffic {
  // One a collective. Gathers: exactly one placeholder among all that they are computed from.
  // Reduce-scatters: from the wait, which has a user, only nodes of one input follow.
  std::vector<bool> gather, scatter;
  std::vector<GroupId> groups;  // of such gathers, in order of the first one
  int32_t group_size = 0;       // of the first one, whichever group is its; 0: none
};

// `primary_only`: as AutoParallel patches it, `groups` holds the most frequent one only, the first
// on a tie; group_size stays that of the first gather of any. Gathers that write into a given
// tensor come last, as in torch. O(nodes + edges).
UpstreamTraffic FindUpstreamTraffic(const Graph& graph, bool primary_only);

}  // namespace bucketd
