// What rank agreement counts; like metrics.h.
#pragma once

#include <array>
#include <cstddef>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

#include "server/base/add_metric.h"
#include "server/jobs/machine/actions.h"
#include "server/jobs/machine/outcomes.h"

namespace bucketd {

class AgreementMetrics {
 public:
  // `registry` outlives this.
  explicit AgreementMetrics(prometheus::Registry& registry);

  prometheus::Counter& tally(Tally tally) { return *tallies_[static_cast<size_t>(tally)]; }

 private:
  std::array<prometheus::Counter*, kTallies> tallies_{};

 public:
  CounterBy<AgreementOutcome> agreements;
  CounterBy<ReplanOutcome> replans;
  prometheus::Histogram& seconds;  // from a scope's first rank to its verdict
  prometheus::Gauge& jobs;
  prometheus::Gauge& scopes;
  prometheus::Gauge& waiting_ranks;
  prometheus::Gauge& pins;
};

}  // namespace bucketd
