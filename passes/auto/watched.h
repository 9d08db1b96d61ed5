// Settings that know which other values would have led to the same order. A decode asks each of
// them only whether it reaches some threshold, so it goes the same way for all values between the
// nearest thresholds on both sides: what was found out for one candidate is known for many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "passes/auto/settings.h"

namespace bucketd::search {

// A number, and the range around it in which every answer so far would have been the same.
class Watched {
 public:
  Watched() = default;
  explicit Watched(int64_t value) : value_(value) {}

  // Narrows nothing: for what is decided by an answer below, or by no value at all.
  int64_t value() const { return value_; }

  bool AtLeast(int64_t least) {
    if (value_ >= least) {
      first_ = std::max(first_, least);
      return true;
    }
    last_ = std::min(last_, least - 1);
    return false;
  }
  bool AtMost(int64_t most) { return !AtLeast(most + 1); }
  // For everything else.
  int64_t Exact() {
    first_ = last_ = value_;
    return value_;
  }

  bool Covers(int64_t other) const { return first_ <= other && other <= last_; }
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }

  // The answers of another question about the same number, too.
  void Join(const Watched& other) {
    first_ = std::max(first_, other.first_);
    last_ = std::min(last_, other.last_);
  }

 private:
  int64_t value_ = 0;
  int64_t first_ = std::numeric_limits<int64_t>::min(), last_ = std::numeric_limits<int64_t>::max();
};

struct WatchedSettings {
  WatchedSettings() = default;
  explicit WatchedSettings(const Settings& settings) {
    ForEach([&](auto plain, auto watched) {
      this->*watched = Watched(static_cast<int64_t>(settings.*plain));
    });
  }

  bool Covers(const Settings& settings) const {
    bool covers = true;
    ForEach([&](auto plain, auto watched) {
      covers = covers && (this->*watched).Covers(static_cast<int64_t>(settings.*plain));
    });
    return covers;
  }

  void Join(const WatchedSettings& other) {
    ForEach([&](auto, auto watched) { (this->*watched).Join(other.*watched); });
  }

  // Calls f with each member of Settings and its counterpart here.
  template <typename F>
  static void ForEach(F f) {
    using S = Settings;
    using W = WatchedSettings;
    f(&S::slack_ps, &W::slack_ps);
    f(&S::lead, &W::lead);
    f(&S::eager, &W::eager);
    f(&S::gather_cap_ps, &W::gather_cap_ps);
    f(&S::late_ps, &W::late_ps);
    f(&S::head_late_ps, &W::head_late_ps);
    f(&S::head_buckets, &W::head_buckets);
    f(&S::lag, &W::lag);
    f(&S::packed_memory, &W::packed_memory);
    f(&S::batch_ps, &W::batch_ps);
    f(&S::batch_share, &W::batch_share);
    f(&S::reduce_cap_ps, &W::reduce_cap_ps);
    f(&S::sinks_first, &W::sinks_first);
    f(&S::wire_weight, &W::wire_weight);
    f(&S::compute_weight, &W::compute_weight);
    f(&S::queue_ps, &W::queue_ps);
    f(&S::tail_queue_ps, &W::tail_queue_ps);
    f(&S::tail_reach, &W::tail_reach);
    f(&S::largest_last, &W::largest_last);
    f(&S::window, &W::window);
    f(&S::overshoot, &W::overshoot);
    // memory_share: what it makes of the limit is asked about instead (Decoder::cap()).
  }

  Watched slack_ps, lead, eager, gather_cap_ps, late_ps, head_late_ps, head_buckets, lag,
      packed_memory, batch_ps, batch_share, reduce_cap_ps, sinks_first, wire_weight, compute_weight,
      queue_ps, tail_queue_ps, tail_reach, largest_last, window, overshoot;
};

}  // namespace bucketd::search
