// Which way a ring turns, and with that the order in which a reduce-scatter adds.
#pragma once

#include <cstdint>

namespace bucketd::agent {

// kNccl: everything moves to rank + 1, and the sum for rank c is ((c+1 + c+2) + ...) + c.
// kGloo: to rank - 1, and the sum is ((c-1 + c-2) + ...) + c: that of torch 2.13's gloo, bit for
// bit, for reduce-scatters whose ranks' parts have an even number of elements (tests/python/
// test_executor.py; its all-reduces are cut otherwise).
enum class RingOrder : uint8_t { kNccl, kGloo };

// The rank that everything moves to, seen from the one that sends: 1 or -1.
constexpr int Direction(RingOrder order) { return order == RingOrder::kGloo ? -1 : 1; }

}  // namespace bucketd::agent
