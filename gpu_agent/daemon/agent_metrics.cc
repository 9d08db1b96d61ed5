#include "gpu_agent/daemon/agent_metrics.h"

#include <algorithm>
#include <numeric>

#include "gpu_agent/daemon/series.h"
#include "passes/cost/costs.h"

namespace bucketd::agent {
namespace {

using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;
using Buckets = Histogram::BucketBoundaries;

constexpr std::array kNamedDTypes = {DType::kBF16, DType::kF16, DType::kF32};
constexpr std::array<const char*, 4> kDTypeNames = {"bf16", "f16", "f32", "other"};
constexpr std::array<const char*, 2> kModeNames = {"packed", "grouped"};
constexpr std::array kNamedCodes = {absl::StatusCode::kUnavailable,
                                    absl::StatusCode::kDeadlineExceeded,
                                    absl::StatusCode::kAborted};
constexpr std::array<const char*, 4> kCodeNames = {"peer_lost", "timeout", "aborted", "other"};
constexpr std::array<const char*, 3> kReportNames = {"accepted", "refused", "unreachable"};

// 8 us to 2 s, each twice the one before.
Buckets SecondsBounds() {
  Buckets bounds;
  for (double bound = 8e-6; bound < 2.2; bound *= 2) bounds.push_back(bound);
  return bounds;
}

Buckets Ratios() { return {0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.4, 2, 4}; }

// Of its name: the last where it has none of its own.
template <typename T, size_t N>
size_t IndexOf(T one, const std::array<T, N>& named) {
  return static_cast<size_t>(std::find(named.begin(), named.end(), one) - named.begin());
}

double SecondsFromPs(int64_t picoseconds) { return static_cast<double>(picoseconds) * 1e-12; }

}  // namespace

AgentMetrics::AgentMetrics(Registry& r)
    : registry_(r),
      epoch_(
          AddGauge(r, "bucket_agent_epoch", "Of the process group; one value on all its agents.")),
      epochs_(AddCounter(r, "bucket_agent_epochs_total", "Times that the group has met.")),
      predicted_over_measured(AddHistogram(
          r, "bucket_agent_predicted_over_measured_ratio",
          "Predicted time of a bucket on the wire over the measured one.", {}, Ratios())),
      ready(AddGauge(r, "bucket_agent_ready",
                     "1 while the agent is connected to its group and its last probe ended well.")),
      paused(AddGauge(r, "bucket_agent_paused",
                      "1 while the agent is in no group, since somebody computes on its node.")),
      verify_mismatches(
          AddCounter(r, "bucket_agent_verify_mismatches_total",
                     "Elements of verified payloads that came off the wire other than they "
                     "should, on any rank of the group.")),
      straggler_ratio(AddGauge(r, "bucket_agent_straggler_ratio",
                               "Time of the same copies on each rank alone, in the last probe: the "
                               "slowest rank over the median one.")),
      last_probe(AddGauge(r, "bucket_agent_last_probe_timestamp_seconds",
                          "Unix time of the last probe that ended well.")),
      probe_interval(AddGauge(r, "bucket_agent_probe_interval_seconds",
                              "Pause between probes (--probe-every).")) {
  for (size_t k = 0; k < kKinds; ++k) {
    const Labels kind = {{"collective", kKindNames[k]}};
    payload_[k] = &AddCounter(r, "bucket_agent_collective_payload_bytes_total",
                              "Bytes of messages, as nccl-tests count them.", kind);
    bus_[k] = &AddCounter(r, "bucket_agent_collective_bus_bytes_total",
                          "Payload times nccl-tests' bus factor: its rate over that of the "
                          "durations is the bus bandwidth.",
                          kind);
    for (size_t d = 0; d < kDTypes; ++d) {
      for (size_t m = 0; m < kModes; ++m) {
        seconds_[k][d][m] = &AddHistogram(
            r, "bucket_agent_collective_duration_seconds", "On the wire, without copies.",
            {{"collective", kKindNames[k]}, {"dtype", kDTypeNames[d]}, {"mode", kModeNames[m]}},
            SecondsBounds());
      }
    }
  }
  for (size_t d = 0; d < kDirections; ++d) {
    const Labels direction = {{"direction", kDirectionNames[d]}};
    copy_seconds_[d] =
        &AddHistogram(r, "bucket_agent_copy_duration_seconds", "Copy-in and copy-out of a bucket.",
                      direction, SecondsBounds());
    copy_bytes_[d] =
        &AddCounter(r, "bucket_agent_copy_bytes_total", "Written by these copies.", direction);
  }
  for (size_t c = 0; c < kCodes; ++c) {
    errors_[c] = &AddCounter(r, "bucket_agent_communicator_errors_total",
                             "Process groups that ended by an error.", {{"code", kCodeNames[c]}});
  }
}

ReportMetrics::ReportMetrics(Registry& r) {
  for (size_t i = 0; i < reports_.size(); ++i) {
    reports_[i] = &AddCounter(r, "bucket_agent_cost_reports_total", "Reports to the planner.",
                              {{"result", kReportNames[i]}});
  }
}

void SetBuildInfo(Registry& r, const std::string& version, const std::string& backend) {
  AddGauge(r, "bucket_agent_build_info", "1.", {{"version", version}, {"backend", backend}}).Set(1);
}

void AgentMetrics::Ran(const CollectiveRow& row, int ranks, int64_t predicted_ps) {
  const size_t kind = IndexOf(row.kind);
  const size_t mode = row.launches > 1 ? 1 : 0;
  const auto bytes = static_cast<double>(row.bytes);
  for (const int64_t ps : row.picoseconds) {
    seconds_[kind][IndexOf(row.dtype, kNamedDTypes)][mode]->Observe(SecondsFromPs(ps));
    payload_[kind]->Increment(bytes);
    bus_[kind]->Increment(bytes * WireFactor(row.kind, ranks));
    if (predicted_ps > 0 && ps > 0) {
      predicted_over_measured.Observe(static_cast<double>(predicted_ps) / static_cast<double>(ps));
    }
  }
}

void AgentMetrics::Copied(const CopyRow& row) {
  const auto times = static_cast<int64_t>(row.picoseconds.size());
  if (times == 0) return;
  const int64_t written = row.moved - row.bytes;
  const size_t direction = written > row.bytes ? 1 : 0;  // those that cast up are of a copy-out
  const int64_t sum = std::accumulate(row.picoseconds.begin(), row.picoseconds.end(), int64_t{0});
  copy_seconds_[direction]->Observe(SecondsFromPs(sum / times));
  copy_bytes_[direction]->Increment(static_cast<double>(written));
}

void AgentMetrics::Member(const std::string& group, int rank, int size) {
  AddGauge(registry_, "bucket_agent_group_info", "1.",
           {{"group", group}, {"rank", std::to_string(rank)}, {"size", std::to_string(size)}})
      .Set(1);
}

void AgentMetrics::Began(uint64_t epoch) {
  epoch_.Set(static_cast<double>(epoch));
  epochs_.Increment();
}

void AgentMetrics::CommunicatorFailed(const absl::Status& error) {
  errors_[IndexOf(error.code(), kNamedCodes)]->Increment();
}

}  // namespace bucketd::agent
