// Rows of a few numbers, with the least of each over every stretch of rows: finds the first row
// that holds small ones without looking at those before it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bucketd::search {

template <size_t kNumbers>
class LeastRows {
 public:
  using Row = std::array<int64_t, kNumbers>;

  // All of that one.
  void Reset(size_t rows, const Row& row) {
    while (width_ < rows) width_ *= 2;
    nodes_.assign(2 * width_, row);
    visits_ = 0;
  }

  // O(log rows)
  void Set(size_t i, size_t number, int64_t value) {
    size_t at = width_ + i;
    nodes_[at][number] = value;
    for (at /= 2; at > 0; at /= 2) {
      const int64_t least = std::min(nodes_[2 * at][number], nodes_[2 * at + 1][number]);
      if (nodes_[at][number] == least) return;
      nodes_[at][number] = least;
    }
  }

  const Row& row(size_t i) const { return nodes_[width_ + i]; }
  const Row& least() const { return nodes_[1]; }  // of each number, over all rows

  // The first row from `from` on of which `may` holds; SIZE_MAX: none. REQUIRES: what holds of a
  // row holds of one whose numbers are no larger, and not of the row that all began as.
  template <typename May>
  size_t First(size_t from, const May& may) {
    if (from >= width_) return SIZE_MAX;
    size_t at = width_ + from;
    while (at % 2 == 0) at /= 2;
    for (;;) {
      ++visits_;
      if (may(nodes_[at])) {
        if (at >= width_) return at - width_;
        at *= 2;
        continue;
      }
      while (at % 2 == 1) at /= 2;
      if (at == 0) return SIZE_MAX;
      ++at;
    }
  }

  int64_t visits() const { return visits_; }

 private:
  size_t width_ = 1;
  std::vector<Row> nodes_;  // of stretches: as a heap, the last `width_` the rows themselves
  int64_t visits_ = 0;
};

}  // namespace bucketd::search
