#include "server/jobs/agreement_metrics.h"

#include "server/base/metrics.h"
#include "server/base/named.h"

namespace bucketd {
namespace {

using prometheus::Registry;

// All ranks of a launch come within seconds, or one is minutes late.
const prometheus::Histogram::BucketBoundaries kSeconds = {
    0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0};

constexpr char kUnpinned[] = "bucketd_agreements_unpinned_total";
constexpr char kUnpinnedHelp[] = "Agreed plans that were handed out without a pin.";

struct Tallied {
  Tally tally;
  const char* name;
  const char* help;
  const char* label = nullptr;
  const char* label_value = nullptr;
};
constexpr std::array<Tallied, kTallies> kTallied = {{
    {Tally::kPinUnread, "bucketd_pins_unread_total",
     "Pins, or their plans, that the store could not give when they were asked for."},
    {Tally::kPinLost, "bucketd_pins_lost_total",
     "Pins whose plan was gone or damaged; it was planned anew."},
    {Tally::kUnpinnedQuota, kUnpinned, kUnpinnedHelp, "reason", "quota"},
    {Tally::kUnpinnedStore, kUnpinned, kUnpinnedHelp, "reason", "store"},
    {Tally::kDisplaced, "bucketd_pinned_jobs_displaced_total",
     "Jobs whose pins made room for those of another job of their tenant."},
    {Tally::kJobDisplaced, kDisplacedName, kDisplacedHelp, "what", "job"},
    {Tally::kRankDisplaced, kDisplacedName, kDisplacedHelp, "what", "rank"},
}};
static_assert(IsByPosition(kTallied, &Tallied::tally));

}  // namespace

AgreementMetrics::AgreementMetrics(Registry& r)
    : agreements(r, "bucketd_agreements_total", "Scopes by what came of them.", "outcome",
                 kAgreementOutcomeNames),
      replans(r, "bucketd_replans_total",
              "Pinned plans whose cost profile has moved on, by what came of them.", "outcome",
              kReplanOutcomeNames),
      seconds(prometheus::BuildHistogram()
                  .Name("bucketd_agreement_seconds")
                  .Help("From a scope's first rank to its verdict.")
                  .Register(r)
                  .Add({}, kSeconds)),
      jobs(AddGauge(r, "bucketd_agreement_jobs", "Jobs in memory.")),
      scopes(AddGauge(r, "bucketd_agreement_scopes", "Scopes of jobs in memory.")),
      waiting_ranks(AddGauge(r, "bucketd_agreement_waiting_ranks",
                             "Ranks that wait for the others of their scope, or for its plan.")),
      pins(AddGauge(r, "bucketd_pins", "Plans that are pinned for jobs, one a scope.")) {
  for (size_t i = 0; i < kTallies; ++i) {
    const Tallied& row = kTallied[i];
    prometheus::Labels labels;
    if (row.label != nullptr) labels.emplace(row.label, row.label_value);
    tallies_[i] = &AddCounter(r, row.name, row.help, labels);
  }
}

}  // namespace bucketd
