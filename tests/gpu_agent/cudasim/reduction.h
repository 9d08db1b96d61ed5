// What a collective leaves on its ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/gpu_agent/cudasim/nccl.h"

namespace bucketd::agent::sim {

size_t InputBytes(const Call& call, int size);
// All ranks' inputs one after the other (all-gather), or reduced rank after rank.
std::vector<std::byte> Reduce(const Call& call, const std::vector<const std::byte*>& inputs);
// What rank `rank` gets of that.
std::vector<std::byte> PartOf(const Call& call, const std::vector<std::byte>& whole, size_t rank,
                              int size);

}  // namespace bucketd::agent::sim
