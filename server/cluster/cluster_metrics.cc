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
    : graphs_brought(AddCounter(r, "bucketd_graphs_brought_total",
                                "Graphs that were uploaded here and brought to another replica.")),
      represented(AddCounter(r, "bucketd_calls_presented_anew_total",
                             "Calls of ranks that were moved from one replica to another while "
                             "they waited.")),
      displaced_ranks(AddCounter(r, kDisplacedName, kDisplacedHelp, {{"what", "rank"}})),
      cut_off(AddGauge(r, "bucketd_replica_cut_off",
                       "1 while this replica cannot say in the store that it is up.")) {
  for (size_t i = 0; i < kForwardOutcomes; ++i) {
    forwarded_[i] = &AddCounter(r, "bucketd_forwarded_calls_total",
                                "Calls of ranks that were forwarded to the replica that has their "
                                "job, by what came of them.",
                                {{"outcome", kOutcomes[i].name}});
  }
  for (size_t i = 0; i < kLeaseKinds; ++i) {
    held_[i] = &AddGauge(r, "bucketd_leases_held", "Leases that this replica holds.",
                         {{"of", kKinds[i].name}});
    taken_over_[i] = &AddCounter(r, "bucketd_leases_taken_over_total",
                                 "Leases that were taken from replicas that have ended.",
                                 {{"of", kKinds[i].name}});
  }
  for (size_t i = 0; i < kReplicaStates; ++i) {
    replicas_[i] = &AddGauge(r, "bucketd_replicas", "Replicas that this one sees, itself included.",
                             {{"state", std::string(Name(static_cast<ReplicaState>(i)))}});
  }
}

}  // namespace bucketd
