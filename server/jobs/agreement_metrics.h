// What rank agreement counts; like metrics.h.
#pragma once

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace bucketd {

// Of a scope: agreed; its ranks differ, or some are missing; planning failed or took too long; a
// later generation began, or the server drained, first.
enum class AgreementOutcome { kAgreed, kDiffer, kMissing, kFailed, kSuperseded };
inline constexpr size_t kAgreementOutcomes = 5;

// Of a pinned plan whose profile has moved on: a faster plan took its place; it stays, since that
// one is not faster by enough, its graph is not here, or that could not be found out in time.
enum class ReplanOutcome { kReplaced, kKept, kNoGraph, kFailed };
inline constexpr size_t kReplanOutcomes = 4;
absl::string_view Name(ReplanOutcome outcome);

class AgreementMetrics {
 public:
  // `registry` outlives this.
  explicit AgreementMetrics(prometheus::Registry& registry);

  prometheus::Counter& agreements(AgreementOutcome outcome) {
    return *agreements_[static_cast<size_t>(outcome)];
  }
  prometheus::Counter& replans(ReplanOutcome outcome) {
    return *replans_[static_cast<size_t>(outcome)];
  }

 private:
  std::array<prometheus::Counter*, kAgreementOutcomes> agreements_{};
  std::array<prometheus::Counter*, kReplanOutcomes> replans_{};

 public:
  prometheus::Histogram& seconds;  // from a scope's first rank to its verdict
  prometheus::Gauge& jobs;
  prometheus::Gauge& scopes;
  prometheus::Gauge& waiting_ranks;
  prometheus::Gauge& pins;
  prometheus::Counter& unpinned_quota;  // agreed plans that were handed out without a pin
  prometheus::Counter& unpinned_store;
  prometheus::Counter& pins_unread;  // the store could not say whether there is a pin
  prometheus::Counter& pins_lost;    // pins whose plan was not there any more
};

}  // namespace bucketd
