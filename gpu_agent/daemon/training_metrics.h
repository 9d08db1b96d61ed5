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

  // One rank's run of a bucket, and of a plan where it is the plan's first bucket; or of a
  // collective whose kernel NCCL's profiler plugin saw (IsOfKernels). `plan` null: unknown.
  void Ran(const RunRecord& record, const RingPlan* plan);
  // One run of a bucket, or of a collective of torch's own, by all ranks of the node: what the last
  // one's took.
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
  // The same classes, of kernels that NCCL's profiler plugin saw.
  struct Kernels {
    prometheus::Counter *ran = nullptr, *seconds = nullptr, *bytes = nullptr;
  };
  struct Torchs {
    prometheus::Counter *collectives = nullptr, *seconds = nullptr;
  };
  struct Part {
    prometheus::Counter *runs = nullptr, *exposed = nullptr, *predicted_exposed = nullptr;
    prometheus::Gauge *peak = nullptr, *predicted_peak = nullptr;
  };
  template <typename Of>
  using ByClass = std::array<std::array<Of, kSizes>, kKinds>;
  template <typename Of>
  static Of& In(ByClass<Of>& classes, const RunRecord& record);
  void AddKernels(prometheus::Registry& registry, const prometheus::Labels& labels, size_t kind,
                  size_t size);

  ByClass<Class> classes_{};
  std::array<ByClass<Kernels>, 2> kernels_{};  // by the record's plan
  ByClass<Torchs> torchs_{};
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
