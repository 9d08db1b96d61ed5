// What the server counts of cost profiles and samples; as ServerMetrics, every series from the
// start at 0 and no label that a client chooses. Thread-safe.
#pragma once

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

#include "server/base/add_metric.h"

namespace bucketd {

// Refused: out of range. Limited: beyond what is held. Replaced: made room for a newer one of the
// same reporter.
enum class SampleResult { kAccepted, kRefused, kLimited, kReplaced, kExpired };
inline constexpr size_t kSampleResults = static_cast<size_t>(SampleResult::kExpired) + 1;

enum class PromotionKind { kPromote, kRollback, kAutomatic };
inline constexpr size_t kPromotionKinds = static_cast<size_t>(PromotionKind::kAutomatic) + 1;

enum class ProposalResult { kNewVersion, kAlreadyThere, kNothingMoved, kError };
inline constexpr size_t kProposalResults = static_cast<size_t>(ProposalResult::kError) + 1;

class CostMetrics {
 public:
  // `registry` outlives this.
  explicit CostMetrics(prometheus::Registry& registry);

 private:
  prometheus::Registry& registry_;

 public:
  CounterBy<SampleResult> samples;
  CounterBy<PromotionKind> promotions;
  CounterBy<ProposalResult> proposals;
  prometheus::Gauge& profiles =
      AddGauge(registry_, "bucketd_cost_profiles",
               "Versions of cost profiles that are here.");  // versions that can be resolved
  prometheus::Gauge& profiles_unreadable =
      AddGauge(registry_, "bucketd_cost_profiles_unreadable",
               "Versions that were stored and cannot be read.");  // versions that the store lost
  prometheus::Gauge& samples_held =
      AddGauge(registry_, "bucketd_cost_samples_held", "Measured samples that are kept.");
  prometheus::Counter& records_unreadable =
      AddCounter(registry_, "bucketd_cost_records_unreadable_total",
                 "Stored profiles and samples that could not be read.");
};

}  // namespace bucketd
