// A row of numbers: add to a range, ask for the largest of a range, both in O(log size).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace bucketd::search {

class RangeMax {
 public:
  static constexpr int64_t kLowest = std::numeric_limits<int64_t>::min() / 4;

  explicit RangeMax(const std::vector<int64_t>& values) {
    while (width_ < static_cast<int32_t>(values.size())) width_ *= 2;
    max_.assign(2 * static_cast<size_t>(width_), kLowest);
    added_.assign(max_.size(), 0);
    std::copy(values.begin(), values.end(), max_.begin() + width_);
    for (size_t i = static_cast<size_t>(width_); i-- > 1;) {
      max_[i] = std::max(max_[2 * i], max_[2 * i + 1]);
    }
  }

  // Back to the values that it was made of. REQUIRES: `fresh` was made of the same.
  void Reset(const RangeMax& fresh) {
    std::copy(fresh.max_.begin(), fresh.max_.end(), max_.begin());
    std::copy(fresh.added_.begin(), fresh.added_.end(), added_.begin());
  }

  // Elements first to last - 1.
  void Add(int32_t first, int32_t last, int64_t value) {
    if (first < last) Add(1, 0, width_, first, last, value);
  }
  // kLowest of an empty range.
  int64_t Max(int32_t first, int32_t last) const {
    return first < last ? Max(1, 0, width_, first, last) : kLowest;
  }

 private:
  void Add(size_t at, int32_t from, int32_t to, int32_t first, int32_t last, int64_t value) {
    if (first <= from && to <= last) {
      max_[at] += value;
      added_[at] += value;
      return;
    }
    const int32_t middle = from + (to - from) / 2;
    if (first < middle) Add(2 * at, from, middle, first, last, value);
    if (last > middle) Add(2 * at + 1, middle, to, first, last, value);
    max_[at] = std::max(max_[2 * at], max_[2 * at + 1]) + added_[at];
  }

  int64_t Max(size_t at, int32_t from, int32_t to, int32_t first, int32_t last) const {
    if (first <= from && to <= last) return max_[at];
    const int32_t middle = from + (to - from) / 2;
    int64_t result = kLowest;
    if (first < middle) result = Max(2 * at, from, middle, first, last);
    if (last > middle) result = std::max(result, Max(2 * at + 1, middle, to, first, last));
    return result + added_[at];
  }

  int32_t width_ = 1;
  std::vector<int64_t> max_, added_;  // of the subtree; to all of it
};

}  // namespace bucketd::search
