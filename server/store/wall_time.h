// Wall clock, in milliseconds since 1970.
#pragma once

#include <chrono>
#include <cstdint>

namespace bucketd {

using WallTime = std::chrono::time_point<std::chrono::system_clock, std::chrono::milliseconds>;

inline WallTime WallNow() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}
inline WallTime WallAt(int64_t ms) { return WallTime(std::chrono::milliseconds(ms)); }
inline int64_t MsOf(WallTime time) { return time.time_since_epoch().count(); }
inline int64_t WallNowMs() { return MsOf(WallNow()); }

}  // namespace bucketd
