// What the server counts of cost profiles and samples; as ServerMetrics, every series from the
// start at 0 and no label that a client chooses. Thread-safe.
#pragma once

#include <array>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

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

  prometheus::Counter& samples(SampleResult r) { return *samples_[static_cast<size_t>(r)]; }
  prometheus::Counter& promotions(PromotionKind k) { return *promotions_[static_cast<size_t>(k)]; }
  prometheus::Counter& proposals(ProposalResult r) { return *proposals_[static_cast<size_t>(r)]; }

 private:
  std::array<prometheus::Counter*, kSampleResults> samples_{};
  std::array<prometheus::Counter*, kPromotionKinds> promotions_{};
  std::array<prometheus::Counter*, kProposalResults> proposals_{};

 public:
  prometheus::Gauge& profiles;             // versions that can be resolved
  prometheus::Gauge& profiles_unreadable;  // versions that the store lost
  prometheus::Gauge& samples_held;
  prometheus::Counter& records_unreadable;
};

}  // namespace bucketd
