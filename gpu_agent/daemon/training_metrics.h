// What an agent counts of the buckets that its node's trainers ran. Labels come from fixed sets:
// jobs by an allow list, everybody else is "other" (under "training", since "job" is Prometheus'
// own); buckets by their collective and a size class. Every series is there from the start.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

#include "gpu_agent/telemetry/ring_layout.h"

namespace bucketd::agent {

// Of one job, or of all that have no label of their own.
class JobMetrics {
 public:
  static constexpr size_t kParts = 4;  // of a step: GraphPart
  static size_t PartOf(const RingPlan& plan);

  JobMetrics(prometheus::Registry& registry, const std::string& job);

  // One rank's run of a bucket, and of a plan where it is the plan's first bucket.
  void Ran(const RunRecord& record, const RingPlan* plan);
  // One run of a bucket by all ranks of the node: what the last one's took on the wire.
  void Met(const RunRecord& last);
  // The most memory of runs of a part's plans, and the most that one of these predicts.
  void SetPeaks(size_t part, double bytes, double predicted_bytes);

 private:
  static constexpr size_t kKinds = 3, kSizes = 5;
  struct Class {
    prometheus::Histogram* wire = nullptr;
    prometheus::Counter *bytes = nullptr, *collectives = nullptr, *collective = nullptr,
                        *predicted = nullptr;
  };
  struct Part {
    prometheus::Counter *runs = nullptr, *exposed = nullptr, *predicted_exposed = nullptr;
    prometheus::Gauge *peak = nullptr, *predicted_peak = nullptr;
  };
  Class& ClassOf(const RunRecord& record);

  std::array<std::array<Class, kSizes>, kKinds> classes_{};
  std::array<Part, kParts> parts_{};
  std::array<prometheus::Counter*, 2> copies_{};
  prometheus::Histogram& ratio_;

 public:
  // Over the job's trainers on this node, the most.
  prometheus::Gauge &trainers, &arena_bytes;
};

// Of the rings themselves.
struct RingMetrics {
  explicit RingMetrics(prometheus::Registry& registry);
  prometheus::Counter &records, &invalid, &dropped, &refused, &broken;
};

}  // namespace bucketd::agent
