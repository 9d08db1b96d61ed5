// Greedy bucketing as torch 2.13 and AutoParallel do it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "passes/pass/greedy/greedy_policy.h"

namespace bucketd::upstream {

// What torch 2.13 takes for parameter traffic, by structure alone: it cannot tell a parameter from
// a saved activation.
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

// All-gathers, then reduce-scatters, then all-reduces, whatever their direction; a bucket stands
// behind its last member with its wait at once, and nothing moves it later. kAny: all-reduces of
// every group. kFsdpGroups: nothing without a gather of a parameter, and all-reduces only on the
// groups of such gathers.
std::unique_ptr<GreedyPolicy> MakeTorchGreedy(const PassContext& context, GreedyTraffic traffic);

// PyTorch's own automatic cap, where a group is known by its size: nodes of eight A100s with
// NVLink, HDR InfiniBand between them. Double arithmetic, cut to bytes. Saturation is not clamped.
int64_t TorchSaturationBytes(int32_t ranks);
int64_t TorchAutoCapBytes(int32_t ranks);

}  // namespace bucketd::upstream
