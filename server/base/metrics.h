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
  prometheus::Counter& plans(PlanOutcome outcome) { return *plans_[Index(outcome)]; }
  prometheus::Counter& uploads(UploadOutcome outcome) { return *uploads_[Index(outcome)]; }

 private:
  template <typename E>
  static size_t Index(E e) {
    return static_cast<size_t>(e);
  }
  static constexpr size_t kCodes = 17;

  std::array<std::array<prometheus::Counter*, kCodes>, kMethods> requests_{};
  std::array<prometheus::Histogram*, kMethods> request_seconds_{};
  std::array<prometheus::Gauge*, kMethods> requests_in_flight_{};
  std::array<prometheus::Counter*, kPlanOutcomes> plans_{};
  std::array<prometheus::Counter*, kUploadOutcomes> uploads_{};

 public:
  prometheus::Counter& computations_ok;
  prometheus::Counter& computations_failed;
  prometheus::Counter& computations_cancelled;
  prometheus::Counter& computations_dropped;
  prometheus::Histogram& compute_seconds;
  prometheus::Gauge& compute_queued;
  prometheus::Gauge& compute_running;
  prometheus::Gauge& waiting_callers;
  prometheus::Gauge& uptime_seconds;
  prometheus::Counter& displaced_callers;
  prometheus::Counter& displaced_computations;
  prometheus::Counter& displaced_uploads;
  prometheus::Counter& displaced_reports;
  prometheus::Counter& displaced_groups;
  prometheus::Counter& leases_granted;
  prometheus::Counter& leases_expired;

  prometheus::Gauge& plan_cache_bytes;
  prometheus::Gauge& plan_cache_entries;
  prometheus::Counter& plan_cache_evictions;
  prometheus::Gauge& graph_cache_bytes;
  prometheus::Gauge& graph_cache_entries;
  prometheus::Counter& graph_cache_evictions;

  prometheus::Gauge& uploads_in_flight;
  prometheus::Counter& upload_received_bytes;
  prometheus::Gauge& upload_reserved_bytes;
  prometheus::Gauge& partial_uploads;
  prometheus::Counter& partial_uploads_dropped;
  prometheus::Counter& uploads_resumed;
  prometheus::Counter& connections_closed;
  prometheus::Gauge& ready;
  prometheus::Gauge& planning_enabled;

  RecentErrors recent_errors;  // not a metric: what the error counters were last counting
};

}  // namespace bucketd
