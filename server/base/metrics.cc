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
    : registry_(r),
      requests_in_flight_(r, "bucketd_requests_in_flight", "Requests not answered yet.", "method",
                          kMethodNames),
      plans(r, "bucketd_plan_requests_total", "GetPlan calls by what came of them.", "outcome",
            kPlanOutcomeNames),
      uploads(r, "bucketd_uploads_total", "Uploads by what came of them.", "outcome",
              kUploadOutcomeNames),
      compute_seconds(AddHistogram(r, "bucketd_plan_compute_seconds",
                                   "Time to compute, verify and serialise one plan.")) {
  for (size_t m = 0; m < kMethods; ++m) {
    const std::string method = kMethodNames[m].name;
    for (size_t c = 0; c < kCodes; ++c) {
      requests_[m][c] =
          &AddCounter(r, "bucketd_requests_total", "Requests answered.",
                      {{"method", method},
                       {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(c))}});
    }
    request_seconds_[m] = &AddHistogram(r, "bucketd_request_seconds",
                                        "From the request to its answer.", {{"method", method}});
  }
  AddGauge(r, "bucketd_build_info", "Always 1; the labels say what runs.",
           {{"version", kServerVersion}, {"planner_version", kPlannerVersion}})
      .Set(1);
}

void ServerMetrics::RequestStarted(Method method) { requests_in_flight_(method).Increment(); }

void ServerMetrics::RequestEnded(Method method, absl::StatusCode code, double seconds) {
  const auto m = static_cast<size_t>(method);
  requests_[m][std::min(static_cast<size_t>(code), kCodes - 1)]->Increment();
  request_seconds_[m]->Observe(seconds);
  requests_in_flight_(method).Decrement();
}

}  // namespace bucketd
