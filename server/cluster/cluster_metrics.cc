#include "server/cluster/cluster_metrics.h"

#include <string>

#include "server/base/add_metric.h"
#include "server/base/metrics.h"
#include "server/base/named.h"

namespace bucketd {
namespace {

using prometheus::Registry;

constexpr std::array<Named<LeaseOf>, kLeaseKinds> kKinds = {{
    {LeaseOf::kJob, "job"},
    {LeaseOf::kPlan, "plan"},
}};
static_assert(IsByPosition(kKinds));
constexpr std::array<Named<ForwardOutcome>, kForwardOutcomes> kOutcomes = {{
    {ForwardOutcome::kPlan, "plan"},
    {ForwardOutcome::kGraphRequired, "graph_required"},
    {ForwardOutcome::kUnplanned, "unplanned"},
    {ForwardOutcome::kError, "error"},
    {ForwardOutcome::kMoved, "moved"},
    {ForwardOutcome::kBroken, "broken"},
}};
static_assert(IsByPosition(kOutcomes));

}  // namespace

ClusterMetrics::ClusterMetrics(Registry& r)
    : registry_(r),
      forwarded(r, "bucketd_forwarded_calls_total",
                "Calls of ranks that were forwarded to the replica that has their job, by what "
                "came of them.",
                "outcome", kOutcomes),
      held(r, "bucketd_leases_held", "Leases that this replica holds.", "of", kKinds),
      taken_over(r, "bucketd_leases_taken_over_total",
                 "Leases that were taken from replicas that have ended.", "of", kKinds) {
  for (size_t i = 0; i < kReplicaStates; ++i) {
    replicas_[i] = &AddGauge(r, "bucketd_replicas", "Replicas that this one sees, itself included.",
                             {{"state", std::string(Name(static_cast<ReplicaState>(i)))}});
  }
}

}  // namespace bucketd
