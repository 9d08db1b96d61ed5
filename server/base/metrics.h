// What the server counts. Declared once, injected, every series present from the start at 0. Labels
// come from fixed sets: never a digest, a tenant or anything else that a client chooses.
// Thread-safe.
#pragma once

#include <array>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

#include "server/base/add_metric.h"
#include "server/base/recent_errors.h"

namespace bucketd {

inline constexpr char kDisplacedName[] = "bucketd_displaced_total";
inline constexpr char kDisplacedHelp[] =
    "What gave way where all places were taken, because its peer or tenant had most of them.";

enum class Method {
  kGetCapabilities,
  kGetPlan,
  kUploadGraph,
  kQueryUpload,
  // Admin
  kGetStatus,
  kListPlans,
  kEvictPlans,
  kListJobs,
  kPinJob,
  kUnpinJob,
  kSetPlanning,
  kListAudit,
  kListTenants,
  kReleaseJob,
  // CostProfiles
  kListProfiles,
  kGetProfile,
  kReportCosts,
  kImportProfile,
  kProposeProfile,
  kPromoteProfile,
  kRollbackProfile,
  // Agents
  kRendezvous,
  kWatchEpoch,
  kEndEpoch,
  // Peers
  kForward,
  kShowJobs,
  kForgetJobs,  // the last one
};
inline constexpr size_t kMethods = static_cast<size_t>(Method::kForgetJobs) + 1;
absl::string_view Name(Method method);

// kHit: from memory.
enum class PlanOutcome {
  kHit,
  kComputed,
  kJoined,
  kGraphRequired,
  kError,
  kPinned,
  kUnplanned,
  kStoreHit,  // the last one
};
inline constexpr size_t kPlanOutcomes = static_cast<size_t>(PlanOutcome::kStoreHit) + 1;
absl::string_view Name(PlanOutcome outcome);

// Rejected: the server refused it. Abandoned: the client went away or stalled.
enum class UploadOutcome { kStored, kAlreadyPresent, kRejected, kAbandoned };
inline constexpr size_t kUploadOutcomes = static_cast<size_t>(UploadOutcome::kAbandoned) + 1;

class ServerMetrics {
 public:
  // `registry` outlives this.
  explicit ServerMetrics(prometheus::Registry& registry);

  void RequestStarted(Method method);
  void RequestEnded(Method method, absl::StatusCode code, double seconds);

 private:
  static constexpr size_t kCodes = 17;  // of gRPC

  prometheus::Registry& registry_;
  std::array<std::array<prometheus::Counter*, kCodes>, kMethods> requests_{};
  std::array<prometheus::Histogram*, kMethods> request_seconds_{};
  GaugeBy<Method> requests_in_flight_;

 public:
  CounterBy<PlanOutcome> plans;
  CounterBy<UploadOutcome> uploads;
  prometheus::Counter& computations_ok =
      AddCounter(registry_, "bucketd_plan_computations_total", "Plans that workers computed.",
                 {{"result", "ok"}});
  prometheus::Counter& computations_failed =
      AddCounter(registry_, "bucketd_plan_computations_total", "Plans that workers computed.",
                 {{"result", "error"}});
  prometheus::Counter& computations_cancelled =
      AddCounter(registry_, "bucketd_plan_computations_total", "Plans that workers computed.",
                 {{"result", "cancelled"}});
  prometheus::Counter& computations_dropped =
      AddCounter(registry_, "bucketd_plan_computations_dropped_total",
                 "Computations that left the queue because nobody waited for "
                 "them any more.");
  prometheus::Histogram& compute_seconds;
  prometheus::Gauge& compute_queued =
      AddGauge(registry_, "bucketd_plan_compute_queued", "Computations that wait for a slot.");
  prometheus::Gauge& compute_running =
      AddGauge(registry_, "bucketd_plan_compute_running", "Computations under way.");
  prometheus::Gauge& waiting_callers =
      AddGauge(registry_, "bucketd_waiting_callers",
               "GetPlan calls that wait for a graph or a computation.");
  prometheus::Gauge& uptime_seconds =
      AddGauge(registry_, "bucketd_uptime_seconds",
               "Since the start, whatever the wall clock was set to meanwhile.");
  prometheus::Counter& displaced_callers =
      AddCounter(registry_, kDisplacedName, kDisplacedHelp, {{"what", "caller"}});
  prometheus::Counter& displaced_computations =
      AddCounter(registry_, kDisplacedName, kDisplacedHelp, {{"what", "computation"}});
  prometheus::Counter& displaced_uploads =
      AddCounter(registry_, kDisplacedName, kDisplacedHelp, {{"what", "upload"}});
  prometheus::Counter& displaced_reports =
      AddCounter(registry_, kDisplacedName, kDisplacedHelp, {{"what", "report"}});
  prometheus::Counter& displaced_groups =
      AddCounter(registry_, kDisplacedName, kDisplacedHelp, {{"what", "group"}});
  prometheus::Counter& leases_granted = AddCounter(registry_, "bucketd_upload_leases_granted_total",
                                                   "Callers that were asked to upload a graph.");
  prometheus::Counter& leases_expired =
      AddCounter(registry_, "bucketd_upload_leases_expired_total",
                 "Leases that ended without an upload having begun.");

  prometheus::Gauge& plan_cache_bytes =
      AddGauge(registry_, "bucketd_plan_cache_bytes", "Held by the plan cache, keys included.");
  prometheus::Gauge& plan_cache_entries =
      AddGauge(registry_, "bucketd_plan_cache_entries", "Plans in the cache.");
  prometheus::Counter& plan_cache_evictions =
      AddCounter(registry_, "bucketd_plan_cache_evictions_total", "Plans dropped for room.");
  prometheus::Gauge& graph_cache_bytes =
      AddGauge(registry_, "bucketd_graph_cache_bytes", "Held by uploaded graphs.");
  prometheus::Gauge& graph_cache_entries =
      AddGauge(registry_, "bucketd_graph_cache_entries", "Uploaded graphs held.");
  prometheus::Counter& graph_cache_evictions =
      AddCounter(registry_, "bucketd_graph_cache_evictions_total", "Graphs dropped for room.");

  prometheus::Gauge& uploads_in_flight =
      AddGauge(registry_, "bucketd_uploads_in_flight", "Upload streams open.");
  prometheus::Counter& upload_received_bytes =
      AddCounter(registry_, "bucketd_upload_received_bytes_total",
                 "Bytes of graphs received, as sent (compressed).");
  prometheus::Gauge& upload_reserved_bytes =
      AddGauge(registry_, "bucketd_upload_reserved_bytes",
               "Announced size of all graphs that are arriving, or broke off and are kept.");
  prometheus::Gauge& partial_uploads =
      AddGauge(registry_, "bucketd_partial_uploads",
               "Uploads that broke off and may go on where they stopped.");
  prometheus::Counter& partial_uploads_dropped =
      AddCounter(registry_, "bucketd_partial_uploads_dropped_total",
                 "Uploads that broke off and were given up: too old, or in "
                 "the way of what arrived.");
  prometheus::Counter& uploads_resumed =
      AddCounter(registry_, "bucketd_uploads_resumed_total",
                 "Uploads that went on where another had stopped.");
  prometheus::Counter& connections_closed =
      AddCounter(registry_, "bucketd_connections_closed_total",
                 "Connections ended, or refused, because of what they or others "
                 "of their host sent or held: frames that nobody answers, "
                 "messages without an end, answers that nobody takes, too "
                 "many connections.");
  prometheus::Gauge& ready =
      AddGauge(registry_, "bucketd_ready", "1 while the server takes requests.");
  prometheus::Gauge& planning_enabled = AddGauge(registry_, "bucketd_planning_enabled",
                                                 "0 while an operator has switched planning off.");

  RecentErrors recent_errors;  // not a metric: what the error counters were last counting
};

}  // namespace bucketd
