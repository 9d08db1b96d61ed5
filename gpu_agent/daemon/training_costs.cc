#include "gpu_agent/daemon/training_costs.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "gpu_agent/run/sweep.h"

namespace bucketd::agent {
namespace {

constexpr size_t kOpenRuns = 8192;
constexpr size_t kClasses = 512, kKept = 256;  // and runs of each
constexpr size_t kSamples = 8;  // the planner keeps as many of a reporter, class and size
constexpr uint32_t kWarm = 2;   // steps before compile and first touch what they will touch again

}  // namespace

std::optional<RunRecord> TrainingCosts::Add(const RingLink& link, const RunRecord& record) {
  const RunKey key{link.group, record.plan, record.step, record.bucket};
  const auto [at, fresh] = open_.try_emplace(key, Met{record, 0});
  Met& met = at->second;
  if (record.wire_ns < met.last.wire_ns) met.last = record;
  if (++met.ranks >= link.ranks_per_node) {
    const RunRecord last = met.last;
    open_.erase(at);
    Keep(link, last);
    return last;
  }
  // A rank that died never tells of its last runs.
  if (fresh) order_.push_back(key);
  while (order_.size() > kOpenRuns) {
    open_.erase(order_.front());
    order_.pop_front();
  }
  return std::nullopt;
}

void TrainingCosts::Keep(const RingLink& link, const RunRecord& record) {
  if (record.step < kWarm || record.wire_ns == 0) return;
  SampleKey key;
  key.of = {static_cast<CollectiveKind>(record.kind), std::string(link.link_class.data()),
            static_cast<int32_t>(link.size), static_cast<int32_t>(link.ranks_per_node),
            static_cast<DType>(record.dtype)};
  key.bytes = record.bytes;
  key.launches = record.launches;
  key.packed = record.packed != 0;
  if (measured_.size() >= kClasses && measured_.count(key) == 0) return;
  std::vector<int64_t>& kept = measured_[key];
  if (kept.size() < kKept) kept.push_back(int64_t{record.wire_ns} * 1000);
}

std::vector<CollectiveSample> TrainingCosts::Take() {
  std::vector<CollectiveSample> samples;
  for (auto& [key, runs] : std::exchange(measured_, {})) {
    const size_t parts = std::min(runs.size(), kSamples);
    for (size_t p = 0; p < parts; ++p) {
      const auto begin = runs.begin() + static_cast<std::ptrdiff_t>(p * runs.size() / parts);
      const auto end = runs.begin() + static_cast<std::ptrdiff_t>((p + 1) * runs.size() / parts);
      CollectiveSample& sample = samples.emplace_back();
      sample.of = key.of;
      sample.launches = key.launches;
      sample.packed = key.packed;
      sample.bytes = key.bytes;
      sample.picoseconds = Median(std::vector<int64_t>(begin, end));
    }
  }
  return samples;
}

}  // namespace bucketd::agent
