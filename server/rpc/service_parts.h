// What the gRPC adapters work on. All of it outlives the gRPC server.
#pragma once

#include <atomic>

#include "server/base/byte_room.h"
#include "server/base/metrics.h"
#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/config/options.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_metrics.h"
#include "server/costs/cost_samples.h"
#include "server/graphs/graph_intake.h"
#include "server/graphs/graph_store.h"
#include "server/graphs/partial_uploads.h"
#include "server/graphs/upload_streams.h"
#include "server/jobs/agreement.h"
#include "server/plans/plan_broker.h"
#include "server/plans/plan_cache.h"
#include "server/plans/planning_switch.h"
#include "server/plans/request_memo.h"
#include "server/rpc/admission.h"
#include "server/tenants/quotas.h"

namespace bucketd {

class JobRoutes;
class PeerJobs;

struct ServiceParts {
  PlanBroker& broker;
  PlanCache& cache;
  RequestMemo& memo;
  GraphStore& graphs;
  GraphIntake& intake;
  PartialUploads& partial_uploads;
  UploadStreams& upload_streams;
  WorkerPool& intake_pool;
  WorkerPool& request_pool;  // reads what is too large for gRPC's threads
  ByteRoom& request_room;    // of requests that are read or wait
  Timers& timers;
  ServerMetrics& metrics;
  const ServerOptions& options;
  const std::atomic<bool>& draining;
  const PlanningSwitch& planning;
  Agreement& agreement;
  CostCatalog& costs;
  CostSamples& cost_samples;
  CostMetrics& cost_metrics;
  const Admission& admission;
  Quotas& quotas;
  // Null: this server is no replica, and has all jobs.
  JobRoutes* routes = nullptr;
  PeerJobs* peer_jobs = nullptr;
};

}  // namespace bucketd
