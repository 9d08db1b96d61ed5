// What an agent counts. Declared once, injected, every series present from the start; labels come
// from fixed sets. Thread-safe. Names and base units as Prometheus wants them; dcgm-exporter's
// figures of the device are not repeated here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

#include "gpu_agent/run/sweep.h"

namespace bucketd::agent {

enum class ReportResult { kAccepted, kRefused, kUnreachable };

// Reports to the planner, of whatever was measured.
class ReportMetrics {
 public:
  explicit ReportMetrics(prometheus::Registry& registry);
  prometheus::Counter& of(ReportResult result) { return *reports_[static_cast<size_t>(result)]; }

 private:
  std::array<prometheus::Counter*, 3> reports_{};
};

// Which program this is. `backend` and `version` are labels.
void SetBuildInfo(prometheus::Registry& registry, const std::string& version,
                  const std::string& backend);

class AgentMetrics {
 public:
  // `registry` outlives this.
  explicit AgentMetrics(prometheus::Registry& registry);

  // Which group this agent is in: one series for as long as it runs, since groups are compared with
  // themselves only.
  void Member(const std::string& group, int rank, int size);
  // The group has met.
  void Began(uint64_t epoch);
  // `predicted_ps`: of one repetition, on the wire; 0: nobody said.
  void Ran(const CollectiveRow& row, int ranks, int64_t predicted_ps);
  // The mean of its repetitions is one.
  void Copied(const CopyRow& row);
  // By the error's code: a peer that went away, a timeout, an abort, whatever else.
  void CommunicatorFailed(const absl::Status& error);

 private:
  static constexpr size_t kKinds = 3, kDTypes = 4, kModes = 2, kDirections = 2, kCodes = 4;

  std::array<std::array<std::array<prometheus::Histogram*, kModes>, kDTypes>, kKinds> seconds_{};
  std::array<prometheus::Counter*, kKinds> payload_{}, bus_{};
  std::array<prometheus::Histogram*, kDirections> copy_seconds_{};
  std::array<prometheus::Counter*, kDirections> copy_bytes_{};
  std::array<prometheus::Counter*, kCodes> errors_{};
  prometheus::Registry& registry_;
  prometheus::Gauge& epoch_;
  prometheus::Counter& epochs_;

 public:
  prometheus::Histogram& predicted_over_measured;
  prometheus::Gauge& ready;
  prometheus::Gauge& paused;  // for those who compute here
  prometheus::Counter& verify_mismatches;
  prometheus::Gauge& straggler_ratio;
  prometheus::Gauge& last_probe;
  prometheus::Gauge& probe_interval;
};

}  // namespace bucketd::agent
