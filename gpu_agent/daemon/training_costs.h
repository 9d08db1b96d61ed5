// What collectives take, from what a node's trainers ran.
//
// A rank's own time on the wire holds the wait for peers that came later, so it says little of the
// wire. Of the ranks of one run the last to come waited for nobody: its time, the shortest, is that
// of the collective. Of a group that spans nodes this node's last one stands for it.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "gpu_agent/telemetry/ring_layout.h"
#include "passes/cost/cost_report.h"

namespace bucketd::agent {

// One thread uses it. Its memory is bounded whatever it is told.
class TrainingCosts {
 public:
  // The record of the run's last rank, once all of the group that are on this node have told of it.
  std::optional<RunRecord> Add(const RingLink& link, const RunRecord& record);
  // Of the runs since the last call: up to eight samples of each class and size, each the median of
  // runs that followed each other.
  std::vector<CollectiveSample> Take();

 private:
  struct RunKey {
    uint64_t group = 0, plan = 0;
    uint32_t step = 0;
    uint16_t bucket = 0;
    friend auto operator<=>(const RunKey&, const RunKey&) = default;
  };
  struct Met {
    RunRecord last;
    uint32_t ranks = 0;
  };
  struct SampleKey {
    LinkClass of;
    int64_t bytes = 0;
    int32_t launches = 1;
    bool packed = false;
    friend auto operator<=>(const SampleKey&, const SampleKey&) = default;
  };

  void Keep(const RingLink& link, const RunRecord& record);

  std::map<RunKey, Met> open_;
  std::deque<RunKey> order_;  // of open_, some of them over
  std::map<SampleKey, std::vector<int64_t>> measured_;
};

}  // namespace bucketd::agent
