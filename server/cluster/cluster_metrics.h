// What replicas count of each other; like metrics.h. A server that is no replica has none of it.
#pragma once

#include <array>
#include <cstddef>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

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

  prometheus::Counter& forwarded(ForwardOutcome outcome) {
    return *forwarded_[static_cast<size_t>(outcome)];
  }
  prometheus::Gauge& held(LeaseOf of) { return *held_[static_cast<size_t>(of)]; }
  prometheus::Counter& taken_over(LeaseOf of) { return *taken_over_[static_cast<size_t>(of)]; }
  prometheus::Gauge& replicas(ReplicaState s) { return *replicas_[static_cast<size_t>(s)]; }

 private:
  std::array<prometheus::Counter*, kForwardOutcomes> forwarded_{};
  std::array<prometheus::Gauge*, kLeaseKinds> held_{};
  std::array<prometheus::Counter*, kLeaseKinds> taken_over_{};
  std::array<prometheus::Gauge*, kReplicaStates> replicas_{};

 public:
  prometheus::Counter& graphs_brought;
  prometheus::Counter& represented;      // calls
  prometheus::Counter& displaced_ranks;  // the agreement's, too
  prometheus::Gauge& cut_off;
};

}  // namespace bucketd
