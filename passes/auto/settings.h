// What the search may set: how the decoder decides. Times in picoseconds, shares in thousandths.
#pragma once

#include <cstdint>
#include <limits>

namespace bucketd::search {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// As a slack: every gather is due; as a cap: none. Times can be added to it.
inline constexpr int64_t kForever = kNever / 2;

// So many thousandths of a value, rounded down, without overflow.
inline int64_t Share(int64_t value, int32_t thousandths) {
  return value / 1000 * thousandths + value % 1000 * thousandths / 1000;
}

struct Settings {
  // Gathers that may start early.
  int64_t slack_ps = 0;            // before their latest start; kForever: as soon as memory allows
  int64_t gather_cap_ps = kNever;  // wire time of one bucket
  int64_t late_ps = 0;             // how far past its first need a bucket may end
  // Where a wire has more left than compute, by how much of that a bucket may be late.
  int32_t lag = 0;
  bool packed_memory = false;  // plan memory for packed gathers
  // Reductions that may start late.
  int64_t batch_ps = kNever;  // a batch goes at so much wire time, or at kBatchShare
  int64_t reduce_cap_ps = kNever;
  bool sinks_first = false;  // also before gathers that are due
  // What a bucket's form costs: wire time and compute time.
  int32_t wire_weight = 80, compute_weight = 1000;
  // Weight gradients that are held back near the end, to fill its waits.
  int64_t tail_queue_ps = 0;
  // Of the memory limit.
  int32_t memory_share = 1000;

  friend bool operator==(const Settings&, const Settings&) = default;
};

}  // namespace bucketd::search
