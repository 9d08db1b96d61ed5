// Numbers of wire messages, whose range is wider than ours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace bucketd {

// What nothing can have becomes the largest number, which whoever checks the value refuses.
inline int32_t ToInt32(uint32_t value) {
  constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min(value, kMost));
}

}  // namespace bucketd
