#include "server/base/metrics.h"

#include <algorithm>
#include <string>

#include "passes/planner.h"
#include "server/base/add_metric.h"
#include "server/base/named.h"
#include "server/base/version.h"

namespace bucketd {
namespace {

using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;

constexpr std::array<Named<Method>, kMethods> kMethodNames = {{
    {Method::kGetCapabilities, "GetCapabilities"},
    {Method::kGetPlan, "GetPlan"},
    {Method::kUploadGraph, "UploadGraph"},
    {Method::kQueryUpload, "QueryUpload"},
    {Method::kGetStatus, "GetStatus"},
    {Method::kListPlans, "ListPlans"},
    {Method::kEvictPlans, "EvictPlans"},
    {Method::kListJobs, "ListJobs"},
    {Method::kPinJob, "PinJob"},
    {Method::kUnpinJob, "UnpinJob"},
    {Method::kSetPlanning, "SetPlanning"},
    {Method::kListAudit, "ListAudit"},
    {Method::kListTenants, "ListTenants"},
    {Method::kReleaseJob, "ReleaseJob"},
    {Method::kListProfiles, "ListProfiles"},
    {Method::kGetProfile, "GetProfile"},
    {Method::kReportCosts, "ReportCosts"},
    {Method::kImportProfile, "ImportProfile"},
    {Method::kProposeProfile, "ProposeProfile"},
    {Method::kPromoteProfile, "PromoteProfile"},
    {Method::kRollbackProfile, "RollbackProfile"},
    {Method::kRendezvous, "Rendezvous"},
    {Method::kWatchEpoch, "WatchEpoch"},
    {Method::kEndEpoch, "EndEpoch"},
    {Method::kForward, "Forward"},
    {Method::kShowJobs, "ShowJobs"},
    {Method::kForgetJobs, "ForgetJobs"},
}};
static_assert(IsByPosition(kMethodNames));
constexpr std::array<Named<PlanOutcome>, kPlanOutcomes> kPlanOutcomeNames = {{
    {PlanOutcome::kHit, "hit"},
    {PlanOutcome::kComputed, "computed"},
    {PlanOutcome::kJoined, "joined"},
    {PlanOutcome::kGraphRequired, "graph_required"},
    {PlanOutcome::kError, "error"},
    {PlanOutcome::kPinned, "pinned"},
    {PlanOutcome::kUnplanned, "unplanned"},
    {PlanOutcome::kStoreHit, "store_hit"},
}};
static_assert(IsByPosition(kPlanOutcomeNames));
constexpr std::array<Named<UploadOutcome>, kUploadOutcomes> kUploadOutcomeNames = {{
    {UploadOutcome::kStored, "stored"},
    {UploadOutcome::kAlreadyPresent, "already_present"},
    {UploadOutcome::kRejected, "rejected"},
    {UploadOutcome::kAbandoned, "abandoned"},
}};
static_assert(IsByPosition(kUploadOutcomeNames));
// By number, as gRPC spells them.
constexpr std::array<Named<absl::StatusCode>, 17> kCodeNames = {{
    {absl::StatusCode::kOk, "OK"},
    {absl::StatusCode::kCancelled, "CANCELLED"},
    {absl::StatusCode::kUnknown, "UNKNOWN"},
    {absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT"},
    {absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED"},
    {absl::StatusCode::kNotFound, "NOT_FOUND"},
    {absl::StatusCode::kAlreadyExists, "ALREADY_EXISTS"},
    {absl::StatusCode::kPermissionDenied, "PERMISSION_DENIED"},
    {absl::StatusCode::kResourceExhausted, "RESOURCE_EXHAUSTED"},
    {absl::StatusCode::kFailedPrecondition, "FAILED_PRECONDITION"},
    {absl::StatusCode::kAborted, "ABORTED"},
    {absl::StatusCode::kOutOfRange, "OUT_OF_RANGE"},
    {absl::StatusCode::kUnimplemented, "UNIMPLEMENTED"},
    {absl::StatusCode::kInternal, "INTERNAL"},
    {absl::StatusCode::kUnavailable, "UNAVAILABLE"},
    {absl::StatusCode::kDataLoss, "DATA_LOSS"},
    {absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED"},
}};
static_assert(IsByPosition(kCodeNames));
// A hit takes tens of microseconds, a wait for an upload minutes.
const Histogram::BucketBoundaries kSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                                              0.025,  0.05,    0.1,    0.25,  0.5,    1.0,   2.5,
                                              5.0,    10.0,    30.0,   60.0,  300.0};

Histogram& AddHistogram(Registry& r, const char* name, const char* help,
                        const Labels& labels = {}) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(r).Add(labels, kSeconds);
}

}  // namespace

absl::string_view Name(Method method) { return kMethodNames[static_cast<size_t>(method)].name; }

absl::string_view Name(PlanOutcome outcome) {
  return kPlanOutcomeNames[static_cast<size_t>(outcome)].name;
}

ServerMetrics::ServerMetrics(Registry& r)
    : computations_ok(AddCounter(r, "bucketd_plan_computations_total",
                                 "Plans that workers computed.", {{"result", "ok"}})),
      computations_failed(AddCounter(r, "bucketd_plan_computations_total",
                                     "Plans that workers computed.", {{"result", "error"}})),
      computations_cancelled(AddCounter(r, "bucketd_plan_computations_total",
                                        "Plans that workers computed.", {{"result", "cancelled"}})),
      computations_dropped(AddCounter(r, "bucketd_plan_computations_dropped_total",
                                      "Computations that left the queue because nobody waited for "
                                      "them any more.")),
      compute_seconds(AddHistogram(r, "bucketd_plan_compute_seconds",
                                   "Time to compute, verify and serialise one plan.")),
      compute_queued(
          AddGauge(r, "bucketd_plan_compute_queued", "Computations that wait for a slot.")),
      compute_running(AddGauge(r, "bucketd_plan_compute_running", "Computations under way.")),
      waiting_callers(AddGauge(r, "bucketd_waiting_callers",
                               "GetPlan calls that wait for a graph or a computation.")),
      uptime_seconds(AddGauge(r, "bucketd_uptime_seconds",
                              "Since the start, whatever the wall clock was set to meanwhile.")),
      displaced_callers(AddCounter(r, kDisplacedName, kDisplacedHelp, {{"what", "caller"}})),
      displaced_computations(
          AddCounter(r, kDisplacedName, kDisplacedHelp, {{"what", "computation"}})),
      displaced_uploads(AddCounter(r, kDisplacedName, kDisplacedHelp, {{"what", "upload"}})),
      displaced_reports(AddCounter(r, kDisplacedName, kDisplacedHelp, {{"what", "report"}})),
      displaced_groups(AddCounter(r, kDisplacedName, kDisplacedHelp, {{"what", "group"}})),
      leases_granted(AddCounter(r, "bucketd_upload_leases_granted_total",
                                "Callers that were asked to upload a graph.")),
      leases_expired(AddCounter(r, "bucketd_upload_leases_expired_total",
                                "Leases that ended without an upload having begun.")),
      plan_cache_bytes(
          AddGauge(r, "bucketd_plan_cache_bytes", "Held by the plan cache, keys included.")),
      plan_cache_entries(AddGauge(r, "bucketd_plan_cache_entries", "Plans in the cache.")),
      plan_cache_evictions(
          AddCounter(r, "bucketd_plan_cache_evictions_total", "Plans dropped for room.")),
      graph_cache_bytes(AddGauge(r, "bucketd_graph_cache_bytes", "Held by uploaded graphs.")),
      graph_cache_entries(AddGauge(r, "bucketd_graph_cache_entries", "Uploaded graphs held.")),
      graph_cache_evictions(
          AddCounter(r, "bucketd_graph_cache_evictions_total", "Graphs dropped for room.")),
      uploads_in_flight(AddGauge(r, "bucketd_uploads_in_flight", "Upload streams open.")),
      upload_received_bytes(AddCounter(r, "bucketd_upload_received_bytes_total",
                                       "Bytes of graphs received, as sent (compressed).")),
      upload_reserved_bytes(
          AddGauge(r, "bucketd_upload_reserved_bytes",
                   "Announced size of all graphs that are arriving, or broke off and are kept.")),
      partial_uploads(AddGauge(r, "bucketd_partial_uploads",
                               "Uploads that broke off and may go on where they stopped.")),
      partial_uploads_dropped(AddCounter(r, "bucketd_partial_uploads_dropped_total",
                                         "Uploads that broke off and were given up: too old, or in "
                                         "the way of what arrived.")),
      uploads_resumed(AddCounter(r, "bucketd_uploads_resumed_total",
                                 "Uploads that went on where another had stopped.")),
      connections_closed(AddCounter(r, "bucketd_connections_closed_total",
                                    "Connections ended, or refused, because of what they or others "
                                    "of their host sent or held: frames that nobody answers, "
                                    "messages without an end, answers that nobody takes, too "
                                    "many connections.")),
      ready(AddGauge(r, "bucketd_ready", "1 while the server takes requests.")),
      planning_enabled(AddGauge(r, "bucketd_planning_enabled",
                                "0 while an operator has switched planning off.")) {
  for (size_t m = 0; m < kMethods; ++m) {
    const std::string method = kMethodNames[m].name;
    for (size_t c = 0; c < kCodes; ++c) {
      requests_[m][c] = &AddCounter(r, "bucketd_requests_total", "Requests answered.",
                                    {{"method", method}, {"code", kCodeNames[c].name}});
    }
    request_seconds_[m] = &AddHistogram(r, "bucketd_request_seconds",
                                        "From the request to its answer.", {{"method", method}});
    requests_in_flight_[m] = &AddGauge(r, "bucketd_requests_in_flight",
                                       "Requests not answered yet.", {{"method", method}});
  }
  for (size_t i = 0; i < kPlanOutcomes; ++i) {
    plans_[i] = &AddCounter(r, "bucketd_plan_requests_total", "GetPlan calls by what came of them.",
                            {{"outcome", kPlanOutcomeNames[i].name}});
  }
  for (size_t i = 0; i < kUploadOutcomes; ++i) {
    uploads_[i] = &AddCounter(r, "bucketd_uploads_total", "Uploads by what came of them.",
                              {{"outcome", kUploadOutcomeNames[i].name}});
  }
  AddGauge(r, "bucketd_build_info", "Always 1; the labels say what runs.",
           {{"version", kServerVersion}, {"planner_version", kPlannerVersion}})
      .Set(1);
}

void ServerMetrics::RequestStarted(Method method) {
  requests_in_flight_[Index(method)]->Increment();
}

void ServerMetrics::RequestEnded(Method method, absl::StatusCode code, double seconds) {
  const size_t m = Index(method);
  requests_[m][std::min(static_cast<size_t>(code), kCodes - 1)]->Increment();
  request_seconds_[m]->Observe(seconds);
  requests_in_flight_[m]->Decrement();
}

}  // namespace bucketd
