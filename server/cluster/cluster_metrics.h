// What replicas count of each other; like metrics.h. A server that is no replica has none of it.
#pragma once

#include <array>
#include <cstddef>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

#include "server/base/add_metric.h"
#include "server/base/metrics.h"
#include "server/cluster/membership.h"

namespace bucketd {

enum class LeaseOf { kJob, kPlan };
inline constexpr size_t kLeaseKinds = static_cast<size_t>(LeaseOf::kPlan) + 1;

// kPlan: with its bytes from here or from the store. kMoved: the replica called does not have the
// job. kBroken: it could not be reached, or did not answer.
enum class ForwardOutcome { kPlan, kGraphRequired, kUnplanned, kError, kMoved, kBroken };
inline constexpr size_t kForwardOutcomes = static_cast<size_t>(ForwardOutcome::kBroken) + 1;

class ClusterMetrics {
 public:
  // `registry` outlives this.
  explicit ClusterMetrics(prometheus::Registry& registry);

  prometheus::Gauge& replicas(ReplicaState s) { return *replicas_[static_cast<size_t>(s)]; }

 private:
  prometheus::Registry& registry_;
  std::array<prometheus::Gauge*, kReplicaStates> replicas_{};

 public:
  CounterBy<ForwardOutcome> forwarded;
  GaugeBy<LeaseOf> held;
  CounterBy<LeaseOf> taken_over;
  prometheus::Counter& graphs_brought =
      AddCounter(registry_, "bucketd_graphs_brought_total",
                 "Graphs that were uploaded here and brought to another replica.");
  prometheus::Counter& represented =
      AddCounter(registry_, "bucketd_calls_presented_anew_total",
                 "Calls of ranks that were moved from one replica to another while "
                 "they waited.");  // calls
  prometheus::Counter& displaced_ranks = AddCounter(registry_, kDisplacedName, kDisplacedHelp,
                                                    {{"what", "rank"}});  // the agreement's, too
  prometheus::Gauge& cut_off =
      AddGauge(registry_, "bucketd_replica_cut_off",
               "1 while this replica cannot say in the store that it is up.");
};

}  // namespace bucketd
