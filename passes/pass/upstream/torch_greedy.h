// Greedy bucketing as torch 2.13 and AutoParallel do it.
#pragma once

#include <cstdint>
#include <memory>

#include "passes/pass/greedy/greedy_policy.h"

namespace bucketd::upstream {

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
