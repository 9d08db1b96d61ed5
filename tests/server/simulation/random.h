// Random numbers that are the same everywhere: the standard library's distributions are not.
#pragma once

#include <cstdint>

namespace bucketd::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // splitmix64
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // Both ends included.
  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(Below(static_cast<uint64_t>(most - least + 1)));
  }
  bool Chance(int64_t percent) { return Between(1, 100) <= percent; }

 private:
  uint64_t state_;
};

}  // namespace bucketd::simulation
