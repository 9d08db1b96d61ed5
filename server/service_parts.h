// What the gRPC adapters work on. All of it outlives the gRPC server.
#pragma once

#include <atomic>

#include "server/agreement.h"
#include "server/cost_catalog.h"
#include "server/graph_intake.h"
#include "server/graph_store.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/partial_uploads.h"
#include "server/plan_broker.h"
#include "server/plan_cache.h"
#include "server/planning_switch.h"
#include "server/request_memo.h"
#include "server/timers.h"
#include "server/worker_pool.h"

namespace bucketd {

struct ServiceParts {
  PlanBroker& broker;
  PlanCache& cache;
  RequestMemo& memo;
  GraphStore& graphs;
  GraphIntake& intake;
  PartialUploads& partial_uploads;
  WorkerPool& intake_pool;
  Timers& timers;
  ServerMetrics& metrics;
  const ServerOptions& options;
  const std::atomic<bool>& draining;
  const PlanningSwitch& planning;
  Agreement& agreement;
  const CostCatalog& costs;
};

}  // namespace bucketd
