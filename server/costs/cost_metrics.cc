#include "server/costs/cost_metrics.h"

#include "server/base/add_metric.h"
#include "server/base/named.h"

namespace bucketd {
namespace {

using prometheus::Registry;

constexpr std::array<Named<SampleResult>, kSampleResults> kSampleNames = {{
    {SampleResult::kAccepted, "accepted"},
    {SampleResult::kRefused, "refused"},
    {SampleResult::kLimited, "limited"},
    {SampleResult::kReplaced, "replaced"},
    {SampleResult::kExpired, "expired"},
}};
static_assert(IsByPosition(kSampleNames));
constexpr std::array<Named<PromotionKind>, kPromotionKinds> kPromotionNames = {{
    {PromotionKind::kPromote, "promote"},
    {PromotionKind::kRollback, "rollback"},
    {PromotionKind::kAutomatic, "automatic"},
}};
static_assert(IsByPosition(kPromotionNames));
constexpr std::array<Named<ProposalResult>, kProposalResults> kProposalNames = {{
    {ProposalResult::kNewVersion, "new_version"},
    {ProposalResult::kAlreadyThere, "already_there"},
    {ProposalResult::kNothingMoved, "nothing_moved"},
    {ProposalResult::kError, "error"},
}};
static_assert(IsByPosition(kProposalNames));

}  // namespace

CostMetrics::CostMetrics(Registry& r)
    : profiles(AddGauge(r, "bucketd_cost_profiles", "Versions of cost profiles that are here.")),
      profiles_unreadable(AddGauge(r, "bucketd_cost_profiles_unreadable",
                                   "Versions that were stored and cannot be read.")),
      samples_held(AddGauge(r, "bucketd_cost_samples_held", "Measured samples that are kept.")),
      records_unreadable(AddCounter(r, "bucketd_cost_records_unreadable_total",
                                    "Stored profiles and samples that could not be read.")) {
  for (size_t i = 0; i < kSampleResults; ++i) {
    samples_[i] =
        &AddCounter(r, "bucketd_cost_samples_total", "Measured samples by what became of them.",
                    {{"result", kSampleNames[i].name}});
  }
  for (size_t i = 0; i < kPromotionKinds; ++i) {
    promotions_[i] =
        &AddCounter(r, "bucketd_cost_promotions_total", "Changes of what NAME@latest means.",
                    {{"kind", kPromotionNames[i].name}});
  }
  for (size_t i = 0; i < kProposalResults; ++i) {
    proposals_[i] =
        &AddCounter(r, "bucketd_cost_proposals_total", "Fits of new versions to the samples.",
                    {{"result", kProposalNames[i].name}});
  }
}

}  // namespace bucketd
