// What collectives have to give, computed the slow and plain way: numbers through double, narrow
// formats by looking for the nearest code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/comm/ring_schedule.h"

namespace bucketd::agent {

using Bytes = std::vector<std::byte>;

// A binary format of at most 16 bits: value and nearest code by definition. Codes are magnitudes;
// `limit` is what overflow becomes.
struct NarrowFormat {
  int mantissa;
  int bias;
  uint32_t limit;
  double ValueOf(uint32_t magnitude) const;
  uint32_t Nearest(double magnitude) const;
};
NarrowFormat FormatOf(DType dtype);  // REQUIRES: f16, bf16, f8

// Input of a rank: integers of all bits; floating point that rounds in sums, or, if `exact`, small
// integers whose sums do not.
Bytes PayloadOf(const Collective& collective, int rank, int size, bool exact);

// Every rank's output for these inputs of all ranks.
std::vector<Bytes> Expected(const Collective& collective, const std::vector<Bytes>& inputs,
                            RingOrder order);

}  // namespace bucketd::agent
