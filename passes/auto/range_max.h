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
    while (width_ < values.size()) width_ *= 2;
    nodes_.resize(2 * width_);
    for (size_t i = 0; i < values.size(); ++i) nodes_[width_ + i].max = values[i];
    for (size_t i = width_; i-- > 1;) Pull(i);
  }

  // Back to the values that it was made of: takes back what was added.
  void Reset() {
    for (size_t i = log_.size(); i-- > 0;) AddUnlogged(log_[i].first, log_[i].last, -log_[i].value);
    log_.clear();
  }

  // Elements first to last - 1.
  void Add(int32_t first, int32_t last, int64_t value) {
    if (first >= last) return;
    AddUnlogged(first, last, value);
    log_.push_back({first, last, value});
  }

  // kLowest of an empty range.
  int64_t Max(int32_t first, int32_t last) const {
    if (first >= last) return kLowest;
    size_t left = width_ + static_cast<size_t>(first),
           right = width_ + static_cast<size_t>(last) - 1;
    int64_t of_left = nodes_[left].max, of_right = nodes_[right].max;
    while (left / 2 != right / 2) {
      if (left % 2 == 0) of_left = std::max(of_left, nodes_[left + 1].max);
      if (right % 2 == 1) of_right = std::max(of_right, nodes_[right - 1].max);
      left /= 2;
      right /= 2;
      of_left += nodes_[left].added;
      of_right += nodes_[right].added;
    }
    int64_t result = std::max(of_left, of_right);
    for (left /= 2; left > 0; left /= 2) result += nodes_[left].added;
    return result;
  }

 private:
  struct Added {
    int32_t first, last;
    int64_t value;
  };
  struct Node {
    int64_t max = kLowest, added = 0;  // of the subtree; to all of it, and in `max`
  };
  void AddUnlogged(int32_t first, int32_t last, int64_t value) {
    size_t left = width_ + static_cast<size_t>(first);
    size_t right = width_ + static_cast<size_t>(last) - 1;
    Apply(left, value);
    if (left != right) Apply(right, value);
    for (; left / 2 != right / 2; left /= 2, right /= 2) {
      if (left % 2 == 0) Apply(left + 1, value);
      if (right % 2 == 1) Apply(right - 1, value);
      Pull(left / 2);
      Pull(right / 2);
    }
    for (left /= 2; left > 0; left /= 2) Pull(left);
  }
  void Apply(size_t at, int64_t value) {
    nodes_[at].max += value;
    nodes_[at].added += value;
  }
  void Pull(size_t at) {
    nodes_[at].max = std::max(nodes_[2 * at].max, nodes_[2 * at + 1].max) + nodes_[at].added;
  }

  size_t width_ = 1;
  std::vector<Node> nodes_;
  std::vector<Added> log_;
};

}  // namespace bucketd::search
