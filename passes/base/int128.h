// Products of two picosecond or byte counts, before what divides them again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace bucketd {

__extension__ typedef __int128 Int128;  // the standard knows none, and -Wpedantic says so

// value * ppm / 10^6, rounded down; the largest int64 where it would be more. REQUIRES: neither is
// negative.
inline int64_t PartsPerMillion(int64_t value, int64_t ppm) {
  const Int128 share = static_cast<Int128>(value) * ppm / 1'000'000;
  return static_cast<int64_t>(std::min<Int128>(share, std::numeric_limits<int64_t>::max()));
}

}  // namespace bucketd
