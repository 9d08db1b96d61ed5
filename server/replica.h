// What makes a server one of several replicas, wired: who else is up, what this one holds, where
// calls of ranks go. Part of the composition root.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "prometheus/registry.h"

#include "server/base/clock.h"
#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/cluster/cluster_metrics.h"
#include "server/cluster/leases.h"
#include "server/cluster/membership.h"
#include "server/config/options.h"
#include "server/graphs/graph_store.h"
#include "server/plans/plan_cache.h"
#include "server/plans/stored_plans.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/peer_calls.h"
#include "server/rpc/peer_jobs.h"
#include "server/store/store.h"

namespace bucketd {

class Replica {
 public:
  struct Parts {  // all outlive this
    const ServerOptions& options;
    Store& store;
    prometheus::Registry& registry;
    Timers& timers;
    PlanCache& cache;
    StoredPlans& stored;
    GraphStore& graphs;
    PeerCalls& peers;
    std::function<uint64_t(const RanksCall& call, JobRoutes::Done done)> ask_here;
    std::function<void(uint64_t call)> cancel_here;
    // A later server has this one's address. Jobs that come here would be agreed on apart from all
    // others. Called once.
    std::function<void()> superseded;
  };
  explicit Replica(const Parts& parts);

  // Tells the others, and looks again and again. A store that cannot be written now may be later.
  void Start();
  // Jobs go to others; then `then`, on another thread, within two seconds whatever the store does.
  void HandOver(std::function<void()> then);
  // Leaves, and gives back what it holds. After the timers have stopped and the last call was
  // answered.
  void Stop();

  Leases& leases() { return leases_; }
  JobRoutes& routes() { return routes_; }
  PeerJobs& peer_jobs() { return peer_jobs_; }
  uint64_t incarnation() const { return members_.self().incarnation; }
  // For people; "": all is well.
  std::string Trouble() const;
  ClusterView View() const;
  // Says of a job that is here whose word that is.
  void Sign(v1::JobStatus& job) const;

 private:
  void Beat();
  void Schedule();
  void Show();

  Timers& timers_;
  ClusterMetrics metrics_;
  Membership members_;
  Leases leases_;
  PeerCalls& peers_;
  SteadyTime swept_;  // of Beat(), which is one at a time
  WorkerPool pool_;   // lookups, reads of plans
  WorkerPool uploads_;
  JobRoutes routes_;
  PeerJobs peer_jobs_;
  std::function<void()> superseded_;  // null: was called
  WorkerPool beats_;                  // last: what it runs uses the rest
};

}  // namespace bucketd
