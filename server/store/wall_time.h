// Wall clock, in milliseconds since 1970.
#pragma once

#include <chrono>
#include <cstdint>

namespace bucketd {

using WallTime = std::chrono::time_point<std::chrono::system_clock, std::chrono::milliseconds>;

inline WallTime WallNow() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}
inline int64_t WallNowMs() { return WallNow().time_since_epoch().count(); }

}  // namespace bucketd
