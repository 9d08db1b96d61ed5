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
    : registry_(r),
      samples(r, "bucketd_cost_samples_total", "Measured samples by what became of them.", "result",
              kSampleNames),
      promotions(r, "bucketd_cost_promotions_total", "Changes of what NAME@latest means.", "kind",
                 kPromotionNames),
      proposals(r, "bucketd_cost_proposals_total", "Fits of new versions to the samples.", "result",
                kProposalNames) {}

}  // namespace bucketd
