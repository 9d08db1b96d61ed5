// A set of small numbers whose smallest is taken first: bits in two levels, so that putting one in
// costs nothing and the next smallest is mostly found in the same word.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace bucketd::search {

class ReadySet {
 public:
  // Empty, for numbers below `size`.
  void Reset(int32_t size) {
    const auto words = static_cast<size_t>(size) / 64 + 1;
    bits_.assign(words, 0);
    filled_.assign(words / 64 + 1, 0);
    front_ = kNone;
  }

  bool empty() const { return front_ == kNone; }
  int32_t front() const { return front_; }  // REQUIRES: !empty()

  void Insert(int32_t i) {
    const auto at = static_cast<size_t>(i);
    bits_[at / 64] |= uint64_t{1} << (at % 64);
    filled_[at / 4096] |= uint64_t{1} << (at / 64 % 64);
    front_ = std::min(front_, i);
  }

  // REQUIRES: !empty()
  int32_t PopFront() {
    const int32_t popped = front_;
    const auto at = static_cast<size_t>(popped);
    size_t word = at / 64;
    bits_[word] &= bits_[word] - 1;  // the lowest bit, since nothing smaller is in the set
    if (bits_[word] == 0) {
      size_t block = word / 64;
      filled_[block] &= ~(uint64_t{1} << (word % 64));
      while (block < filled_.size() && filled_[block] == 0) ++block;
      if (block == filled_.size()) {
        front_ = kNone;
        return popped;
      }
      word = block * 64 + static_cast<size_t>(std::countr_zero(filled_[block]));
    }
    front_ = static_cast<int32_t>(word * 64) + std::countr_zero(bits_[word]);
    return popped;
  }

 private:
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  std::vector<uint64_t> bits_, filled_;  // filled_: words of bits_ that are not 0
  int32_t front_ = kNone;
};

}  // namespace bucketd::search
