// The store as the tier behind the plan cache: what the broker asks before it asks for a graph, and
// where a computed plan goes before its callers are answered. Thread-safe.
#pragma once

#include <functional>
#include <string>

#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/plans/plan_cache.h"
#include "server/plans/plan_request.h"
#include "server/store/store.h"
#include "server/store/store_metrics.h"
#include "server/tenants/quotas.h"

namespace bucketd {

class StoredPlans {
 public:
  struct Parts {  // all outlive this
    Store& store;
    StoreMetrics& metrics;
    PlanCache& cache;
    Timers& timers;
    Quotas& quotas;
  };
  explicit StoredPlans(const Parts& parts);

  // Runs `job`, which may call Find(), on a thread for reading. False: too many wait already.
  bool TrySubmit(std::function<void()> job);

  // The following block on the disk.
  // Null: there is none, or there was a damaged one. UNAVAILABLE: it is not known. What it returns
  // is a plan for that graph.
  absl::StatusOr<PlanReplyPtr> Find(const std::string& key, const Digest& graph);
  // The same of what the store has said already.
  absl::StatusOr<PlanReplyPtr> Read(const std::string& key, const Digest& graph,
                                    absl::StatusOr<std::optional<std::string>> bytes);
  // Returns when the plan is safe, or, false, when it is clear that it cannot be written, which is
  // counted and logged: callers get their plan all the same. Its lease goes with it.
  bool Save(const PlanRequest& request, absl::string_view plan, const std::optional<Record>& lease);

  // Begins to tell the store, once a minute, which plans were used in memory, and to set the
  // gauges.
  void Start();
  // After the timers have stopped.
  void Stop();

 private:
  void StartLater();
  void Refresh();
  // The tenant's oldest plans make room for its newest.
  void KeepWithinQuota(const std::string& tenant);

  const Parts parts_;
  WorkerPool pool_;
};

}  // namespace bucketd
