#include "server/jobs/agreement_metrics.h"

#include "server/base/metrics.h"

namespace bucketd {
namespace {

using prometheus::Labels;
using prometheus::Registry;

// All ranks of a launch come within seconds, or one is minutes late.
const prometheus::Histogram::BucketBoundaries kSeconds = {
    0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0};

prometheus::Counter& AddCounter(Registry& r, const char* name, const char* help,
                                const Labels& labels = {}) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(r).Add(labels);
}

prometheus::Gauge& AddGauge(Registry& r, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(r).Add({});
}

constexpr char kUnpinned[] = "bucketd_agreements_unpinned_total";
constexpr char kUnpinnedHelp[] = "Agreed plans that were handed out without a pin.";

}  // namespace

AgreementMetrics::AgreementMetrics(Registry& r)
    : seconds(prometheus::BuildHistogram()
                  .Name("bucketd_agreement_seconds")
                  .Help("From a scope's first rank to its verdict.")
                  .Register(r)
                  .Add({}, kSeconds)),
      jobs(AddGauge(r, "bucketd_agreement_jobs", "Jobs in memory.")),
      scopes(AddGauge(r, "bucketd_agreement_scopes", "Scopes of jobs in memory.")),
      waiting_ranks(AddGauge(r, "bucketd_agreement_waiting_ranks",
                             "Ranks that wait for the others of their scope, or for its plan.")),
      pins(AddGauge(r, "bucketd_pins", "Plans that are pinned for jobs, one a scope.")) {
  tallies_ = {&AddCounter(r, "bucketd_pins_unread_total",
                          "Scopes for which the store could not say whether there is a pin."),
              &AddCounter(r, "bucketd_pins_lost_total",
                          "Pins whose plan was gone or damaged; it was planned anew."),
              &AddCounter(r, kUnpinned, kUnpinnedHelp, {{"reason", "quota"}}),
              &AddCounter(r, kUnpinned, kUnpinnedHelp, {{"reason", "store"}}),
              &AddCounter(r, "bucketd_pinned_jobs_displaced_total",
                          "Jobs whose pins made room for those of another job of their tenant."),
              &AddCounter(r, kDisplacedName, kDisplacedHelp, {{"what", "job"}}),
              &AddCounter(r, kDisplacedName, kDisplacedHelp, {{"what", "rank"}})};
  for (size_t i = 0; i < kAgreementOutcomes; ++i) {
    agreements_[i] = &AddCounter(r, "bucketd_agreements_total", "Scopes by what came of them.",
                                 {{"outcome", kAgreementOutcomeNames[i]}});
  }
  for (size_t i = 0; i < kReplanOutcomes; ++i) {
    replans_[i] = &AddCounter(r, "bucketd_replans_total",
                              "Pinned plans whose cost profile has moved on, by what came of them.",
                              {{"outcome", kReplanOutcomeNames[i]}});
  }
}

}  // namespace bucketd
