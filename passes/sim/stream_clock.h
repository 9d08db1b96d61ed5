// The clocks of a step: one compute stream, one stream a process group, and the host that launches
// everything. Whoever asks when something ends asks here: the simulator, the search of mode auto
// and its robustness evaluator agree to the picosecond.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "passes/base/index.h"
#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "passes/sim/busy_time.h"
#include "passes/sim/simulator.h"

namespace bucketd::internal {

// What every launch costs the host, and kernels beside a collective.
struct ClockRates {
  int64_t host_ps_per_kernel = 0, host_ps_per_collective = 0;
  int64_t overlap_slowdown_ppb = 0;
};
inline ClockRates RatesOf(const Costs& costs) {
  return {costs.host_ps_per_kernel(), costs.host_ps_per_collective(), costs.overlap_slowdown_ppb()};
}

// What one launch takes of the streams.
struct LaunchWork {
  GroupId group = 0;
  int64_t copy_in_ps = 0, copy_out_ps = 0;  // kernels before the launch and behind its wait
  int64_t slot_ps = 0;                      // of its group's stream, copies there included
  int64_t charged_ps = 0;                   // of compute, for copies on the group's stream;
  int32_t copies_on_stream = 0;             // the host launches so many
};

class StreamClock {
 public:
  // As a step begins.
  void Reset(size_t groups, const ClockRates& rates) {
    rates_ = rates;
    now_ = host_ = 0;
    stream_free_.assign(groups, 0);
    busy_.Clear();
  }

  // A kernel of so much work; when it begins. None if there is no work.
  int64_t Kernel(int64_t work_ps) {
    if (work_ps <= 0) return now_;
    host_ += rates_.host_ps_per_kernel;
    const int64_t start = std::max(now_, host_);
    now_ = busy_.Finish(start, work_ps, rates_.overlap_slowdown_ppb);
    return start;
  }

  // A launch behind its copy-in, which is a kernel of its own.
  WireTime Launch(const LaunchWork& work) {
    host_ += rates_.host_ps_per_collective + work.copies_on_stream * rates_.host_ps_per_kernel;
    int64_t& free = stream_free_[Index(work.group)];
    const int64_t start = std::max({free, now_, host_});
    if (work.charged_ps > 0) {
      now_ = busy_.Finish(std::max(now_, host_), work.charged_ps, rates_.overlap_slowdown_ppb);
    }
    free = start + work.slot_ps;
    busy_.Add(start, free);
    return {start, free};
  }

  // Compute stands until then, if that is not over.
  void WaitUntil(int64_t end_ps) { now_ = std::max(now_, end_ps); }

  int64_t now_ps() const { return now_; }  // of the compute stream
  int64_t free_ps(GroupId group) const { return stream_free_[Index(group)]; }
  // When every stream is idle.
  int64_t end_ps() const {
    int64_t end = now_;
    for (const int64_t free : stream_free_) end = std::max(end, free);
    return end;
  }

 private:
  ClockRates rates_;
  int64_t now_ = 0, host_ = 0;
  std::vector<int64_t> stream_free_;  // one a group
  BusyTime busy_;
};

}  // namespace bucketd::internal
