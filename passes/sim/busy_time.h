// When some collective runs, and how long compute takes beside that. The simulator's clock; whoever
// schedules by the same model uses the same arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "passes/base/int128.h"

namespace bucketd::internal {

inline constexpr int64_t kBillion = 1'000'000'000;

// The union of the intervals in which some collective runs. A collective begins either now (and
// "now" never goes back) or when its stream is free, which is inside the last interval; so
// intervals are only ever appended or the last one grows.
class BusyTime {
 public:
  void Clear() {
    intervals_.clear();
    next_ = 0;
  }

  void Add(int64_t start, int64_t end) {
    if (!intervals_.empty() && start <= intervals_.back().end) {
      intervals_.back().end = std::max(intervals_.back().end, end);
    } else {
      intervals_.push_back({start, end});
    }
    // A copy that is charged to compute may have gone past the interval that now grows.
    next_ = std::min(next_, intervals_.size() - 1);
  }

  // When `work` of compute begun at t ends, if it runs 1 + slowdown times slower while a collective
  // runs. REQUIRES: t does not go back from call to call.
  int64_t Finish(int64_t t, int64_t work, int64_t slowdown_ppb) {
    while (next_ < intervals_.size() && intervals_[next_].end <= t) ++next_;
    for (size_t k = next_; work > 0 && k < intervals_.size(); ++k) {
      const Interval& busy = intervals_[k];
      if (t < busy.start) {
        const int64_t gap = busy.start - t;
        if (work <= gap) return t + work;
        work -= gap;
        t = busy.start;
      }
      const int64_t slow = Scale(work, kBillion + slowdown_ppb, kBillion);
      if (slow <= busy.end - t) return t + slow;
      work -= std::min(work, Scale(busy.end - t, kBillion, kBillion + slowdown_ppb));
      t = busy.end;
    }
    return t + work;
  }

 private:
  struct Interval {
    int64_t start, end;
  };

  // value * by / over, rounded to nearest; in 64 bits where that holds it, which is much faster.
  static int64_t Scale(int64_t value, int64_t by, int64_t over) {
    if (value < (int64_t{1} << 33) && by < (int64_t{1} << 31)) {
      return static_cast<int64_t>((static_cast<uint64_t>(value) * static_cast<uint64_t>(by) +
                                   static_cast<uint64_t>(over / 2)) /
                                  static_cast<uint64_t>(over));
    }
    return static_cast<int64_t>((Int128{value} * by + over / 2) / over);
  }

  std::vector<Interval> intervals_;
  size_t next_ = 0;  // first that is not over
};

}  // namespace bucketd::internal
