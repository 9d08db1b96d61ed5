// A set of small numbers, as bits in two levels: putting one in or taking one out costs nothing,
// and the next smallest is mostly found in the same word.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "passes/base/index.h"

namespace bucketd {

class NumberSet {
 public:
  NumberSet() = default;
  explicit NumberSet(int32_t size) { Reset(size); }
  // Empty, for numbers below `size`.
  void Reset(int32_t size) {
    const size_t words = Index(size) / 64 + 1;
    bits_.assign(words, 0);
    filled_.assign(words / 64 + 1, 0);
    front_ = kNone;
  }

  bool empty() const { return front_ == kNone; }
  int32_t front() const { return front_; }  // REQUIRES: !empty()

  void Insert(int32_t i) {
    const size_t at = Index(i);
    bits_[at / 64] |= uint64_t{1} << (at % 64);
    filled_[at / 4096] |= uint64_t{1} << (at / 64 % 64);
    front_ = std::min(front_, i);
  }

  // If it is there.
  void Erase(int32_t i) {
    const size_t word = Index(i) / 64;
    bits_[word] &= ~(uint64_t{1} << (Index(i) % 64));
    if (bits_[word] == 0) filled_[word / 64] &= ~(uint64_t{1} << (word % 64));
    if (i == front_) front_ = NextOrNone(i);
  }

  // REQUIRES: !empty()
  int32_t PopFront() {
    const int32_t popped = front_;
    Erase(popped);
    return popped;
  }

  // The smallest that is at least `from`; -1 if there is none. REQUIRES: 0 <= from <= size.
  int32_t Next(int32_t from) const {
    const int32_t next = NextOrNone(from);
    return next == kNone ? -1 : next;
  }

 private:
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

  int32_t NextOrNone(int32_t from) const {
    const size_t word = Index(from) / 64;
    const uint64_t rest = bits_[word] >> (Index(from) % 64);
    if (rest != 0) return from + std::countr_zero(rest);
    size_t block = word / 64;
    uint64_t behind = filled_[block] & (~uint64_t{1} << (word % 64));  // words
    while (behind == 0) {
      if (++block == filled_.size()) return kNone;
      behind = filled_[block];
    }
    const size_t found = block * 64 + static_cast<size_t>(std::countr_zero(behind));
    return static_cast<int32_t>(found * 64) + std::countr_zero(bits_[found]);
  }

  std::vector<uint64_t> bits_, filled_;  // filled_: words of bits_ that are not 0
  int32_t front_ = kNone;
};

}  // namespace bucketd
