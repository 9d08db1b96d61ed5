// What torch 2.13 takes for parameter traffic.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/ir/graph.h"

namespace bucketd::upstream {

// By structure alone: it cannot tell a parameter from a saved activation.
struct Traffic {
  // One a collective. Gathers: exactly one placeholder among all that they are computed from.
  // Reduce-scatters: from the wait, which has a user, only nodes of one input follow.
  std::vector<bool> gather, scatter;
  std::vector<GroupId> groups;  // of such gathers, in order of the first one
  int32_t group_size = 0;       // of the first one, whichever group is its; 0: none
};

// `primary_only`: as AutoParallel patches it, `groups` holds the most frequent one only, the first
// on a tie; group_size stays that of the first gather of any. Gathers that write into a given
// tensor come last, as in torch. O(nodes + edges).
Traffic FindTraffic(const Graph& graph, bool primary_only);

}  // namespace bucketd::upstream
