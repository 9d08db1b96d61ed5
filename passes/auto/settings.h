// What the search may turn: how the decoder decides. Times in picoseconds, shares in thousandths.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "passes/base/int128.h"
#include "passes/sim/busy_time.h"

namespace bucketd::search {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

inline constexpr int32_t kNoShare = 1'000'000;

// So many thousandths of a value, rounded down, without overflow.
inline int64_t Share(int64_t value, int32_t thousandths) {
  return value / 1000 * thousandths + value % 1000 * thousandths / 1000;
}

// The fewest thousandths of a value whose share is at least `part`; at most kNever.
// REQUIRES: value > 0, part >= 0.
inline int64_t ThousandthsFor(int64_t part, int64_t value) {
  return static_cast<int64_t>(std::min<Int128>(kNever, (Int128{part} * 1000 + value - 1) / value));
}

struct Settings {
  // Gathers that may start early.
  int64_t slack_ps = 0;            // before their latest start
  int32_t lead = 1300;             // of their wire time, how much is planned for
  bool eager = false;              // whenever the wire is free and memory allows
  int64_t gather_cap_ps = kNever;  // wire time of one bucket
  int64_t late_ps = 0;             // how far past its first need a bucket may end
  int64_t head_late_ps = 0;        // the same for the first `head_buckets`
  int32_t head_buckets = 0;
  int32_t lag = 0;             // of the excess of wire over compute, what every bucket may be late
  bool packed_memory = false;  // plan memory for packed gathers
  // Reductions that may start late.
  int64_t batch_ps = kNever;  // a batch goes at so much wire time,
  int32_t batch_share = 500;  // or at this share of the compute that is left; kNoShare: or never
  int64_t reduce_cap_ps = kNever;
  bool sinks_first = false;  // also before gathers that are due
  // What a bucket's form costs: wire time and compute time.
  int32_t wire_weight = 80, compute_weight = 1000;
  // Compute that may wait: weight gradients.
  int64_t queue_ps = 0, tail_queue_ps = 0;  // held back everywhere; and near the end,
  int32_t tail_reach = 3000;                // which is so many tail queues before it
  bool largest_last = true;                 // at the end those with the largest results first
  // Compute that may run while the step waits.
  int32_t window = 4000;     // leaders ahead
  int32_t overshoot = 1000;  // of its time, how much may stick out of the wait
  // Of the memory limit.
  int32_t memory_share = 1000;

  friend bool operator==(const Settings&, const Settings&) = default;
};

}  // namespace bucketd::search
