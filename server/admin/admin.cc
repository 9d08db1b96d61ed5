#include "server/admin/admin.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "passes/base/status_macros.h"
#include "passes/cost/profile.h"
#include "passes/planner.h"
#include "server/admin/job_list.h"
#include "server/base/errors.h"
#include "server/base/names.h"
#include "server/base/version.h"
#include "server/jobs/machine/actions.h"
#include "server/plans/plan_request.h"

namespace bucketd {
namespace {

constexpr int kMaxJobsInStatus = 100;
constexpr int64_t kMaxPinMs = int64_t{366} * 86'400'000;

int64_t Ms(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

int64_t Value(const prometheus::Gauge& gauge) { return static_cast<int64_t>(gauge.Value()); }
int64_t Value(const prometheus::Counter& counter) { return static_cast<int64_t>(counter.Value()); }

absl::Status Malformed(absl::string_view message) {
  return MakeError(Reason::kRequestMalformed, message);
}

void FillPlanning(const PlanningSwitch::State& from, v1::PlanningState& to) {
  to.set_enabled(from.enabled);
  to.set_why(from.why);
  to.set_since_ms(from.since_ms);
  to.set_persisted(from.persisted);
  to.set_not_stored(from.not_stored);
}

void AddCache(const char* name, int64_t entries, int64_t bytes, int64_t capacity, int64_t evictions,
              v1::GetStatusResponse& status) {
  v1::CacheStatus& cache = *status.add_caches();
  cache.set_name(name);
  cache.set_entries(entries);
  cache.set_bytes(bytes);
  cache.set_capacity_bytes(capacity);
  cache.set_evictions(evictions);
}

void FillTrouble(const StoreTrouble& from, v1::StoreTrouble& to) {
  to.set_why(from.why);
  to.set_since_ms(Ms(from.since));
}

void FillHealth(const StoreHealth& health, v1::StoreStatus& to) {
  to.set_failed_reads(health.failed_reads);
  to.set_failed_writes(health.failed_writes);
  to.set_damage(health.damage);
  if (health.reading.has_value()) FillTrouble(*health.reading, *to.mutable_reading());
  if (health.writing.has_value()) FillTrouble(*health.writing, *to.mutable_writing());
}

absl::Status CheckPinnedJob(const std::string& tenant, const std::string& job) {
  RETURN_IF_ERROR(CheckTenant(tenant));
  if (job.empty()) return Malformed("job_id: a job has a name");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int32_t> ListLimit(int32_t asked, int32_t by_default) {
  if (asked == 0) return by_default;
  if (asked > 0 && asked <= kMaxListed) return asked;
  return Malformed(
      absl::StrCat("limit: ", asked, ", expected 1 to ", kMaxListed, ", or 0 for ", by_default));
}

std::string PlanKeyField(absl::string_view key, absl::string_view name) {
  const std::string begin = absl::StrCat(name, "=");
  for (absl::string_view line : absl::StrSplit(key, '\n')) {
    if (!absl::ConsumePrefix(&line, begin)) continue;
    std::string value;
    if (line.size() >= 2 && line.front() == '"' && line.back() == '"' &&
        absl::CUnescape(line.substr(1, line.size() - 2), &value)) {
      return value;
    }
    return std::string(line);
  }
  return "";
}

void Admin::FillPlans(v1::GetStatusResponse& status) const {
  ServerMetrics& m = parts_.metrics;
  v1::PlanCounts& plans = *status.mutable_plans();
  plans.set_hits(Value(m.plans(PlanOutcome::kHit)));
  plans.set_computed(Value(m.plans(PlanOutcome::kComputed)));
  plans.set_joined(Value(m.plans(PlanOutcome::kJoined)));
  plans.set_graph_required(Value(m.plans(PlanOutcome::kGraphRequired)));
  plans.set_errors(Value(m.plans(PlanOutcome::kError)));
  plans.set_store_hits(Value(m.plans(PlanOutcome::kStoreHit)));
  plans.set_pinned(Value(m.plans(PlanOutcome::kPinned)));
  plans.set_unplanned(Value(m.plans(PlanOutcome::kUnplanned)));
  AddCache("plans", Value(m.plan_cache_entries), Value(m.plan_cache_bytes),
           parts_.options.plan_cache_bytes, Value(m.plan_cache_evictions), status);
  AddCache("graphs", Value(m.graph_cache_entries), Value(m.graph_cache_bytes),
           parts_.options.graph_cache_bytes, Value(m.graph_cache_evictions), status);
}

void Admin::FillCluster(v1::GetStatusResponse& status) const {
  if (parts_.hooks.cluster == nullptr) return;
  const ClusterView view = parts_.hooks.cluster();
  v1::ClusterStatus& cluster = *status.mutable_cluster();
  for (const ReplicaView& replica : view.replicas) {
    v1::ReplicaStatus& row = *cluster.add_replicas();
    row.set_address(replica.id.address);
    row.set_state(std::string(Name(replica.state)));
    row.set_silent_ms(replica.unmoved.count());
    row.set_self(replica.self);
  }
  cluster.set_job_leases(view.job_leases);
  cluster.set_plan_leases(view.plan_leases);
  cluster.set_trouble(view.trouble);
}

void Admin::FillLoad(v1::LoadStatus& load) const {
  const ServerMetrics& m = parts_.metrics;
  const ServerOptions& o = parts_.options;
  load.set_computing(Value(m.compute_running));
  load.set_compute_slots(o.compute_slots);
  load.set_queued(Value(m.compute_queued));
  load.set_queue_limit(o.compute_queue);
  load.set_waiting(Value(m.waiting_callers));
  load.set_waiting_limit(o.max_waiting);
  load.set_uploads(Value(m.uploads_in_flight));
  load.set_uploads_limit(o.intake.max_uploads);
}

void Admin::FillGivenUp(v1::GivenUp& given_up) const {
  const ServerMetrics& m = parts_.metrics;
  given_up.set_callers(Value(m.displaced_callers));
  given_up.set_computations(Value(m.displaced_computations));
  given_up.set_uploads(Value(m.displaced_uploads));
  given_up.set_groups(Value(m.displaced_groups));
  given_up.set_reports(Value(m.displaced_reports));
  AgreementMetrics& jobs = parts_.agreement_metrics;
  given_up.set_jobs(Value(jobs.tally(Tally::kDisplaced)));
  given_up.set_job_places(Value(jobs.tally(Tally::kJobDisplaced)));
  given_up.set_ranks(Value(jobs.tally(Tally::kRankDisplaced)));
  given_up.set_abandoned(Value(m.computations_dropped));
  given_up.set_connections(Value(m.connections_closed));
}

void Admin::FillStore(v1::GetStatusResponse& status) const {
  if (parts_.store_path.empty()) return;
  v1::StoreStatus& to = *status.mutable_store();
  to.set_path(parts_.store_path);
  FillHealth(parts_.store_metrics.Health(), to);
  const absl::StatusOr<StoreStats> stats = parts_.store.Stats();
  if (!stats.ok()) {
    to.set_error(std::string(stats.status().message()));
    return;
  }
  to.set_plans(stats->plans);
  to.set_plan_bytes(stats->plan_bytes);
  to.set_capacity_bytes(parts_.options.store_bytes);
  to.set_held_plans(stats->held_plans);
  to.set_records(stats->records);
  to.set_file_bytes(stats->file_bytes);
  if (stats->oldest_use.has_value()) to.set_oldest_use_ms(Ms(*stats->oldest_use));
}

void Admin::FillErrors(v1::GetStatusResponse& status) const {
  for (const RecentError& error : parts_.metrics.recent_errors.List()) {
    v1::RecentError& to = *status.add_errors();
    to.set_when_ms(Ms(error.when));
    to.set_method(error.method);
    to.set_code(absl::StatusCodeToString(error.code));
    to.set_reason(error.reason);
    to.set_message(error.message);
    to.set_request_id(error.request_id);
    to.set_trace_id(error.trace_id);
  }
}

v1::GetStatusResponse Admin::GetStatus() const {
  const ServerState state = parts_.state();
  v1::GetStatusResponse status;
  status.set_server_version(kServerVersion);
  status.set_planner_version(kPlannerVersion);
  status.set_state(state.draining ? "draining" : "serving");
  status.set_address(state.address);
  status.set_http_address(state.http_address);
  status.set_pid(getpid());
  // The wall clock may have been set since; what it would have said then fits what it says now.
  const int64_t uptime_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                                std::chrono::steady_clock::now() - state.started)
                                .count();
  status.set_uptime_ms(uptime_ms);
  status.set_started_ms(WallNowMs() - uptime_ms);
  FillPlanning(parts_.planning.Get(), *status.mutable_planning());
  FillPlans(status);
  FillLoad(*status.mutable_load());
  FillGivenUp(*status.mutable_given_up());
  FillStore(status);
  std::vector<v1::JobStatus> jobs = parts_.hooks.jobs();
  status.set_jobs_total(static_cast<int64_t>(jobs.size()));
  status.set_jobs_waiting(std::count_if(
      jobs.begin(), jobs.end(), [](const v1::JobStatus& job) { return job.state() == "waiting"; }));
  v1::ShowJobsRequest some;
  some.set_limit(kMaxJobsInStatus);
  KeepAsked(some, jobs);
  for (v1::JobStatus& job : jobs) *status.add_jobs() = std::move(job);
  for (const ProfileInfo& info : parts_.costs.List("")) {
    if (!info.promoted) continue;
    v1::CostProfileStatus& profile = *status.add_cost_profiles();
    profile.set_name(info.name);
    profile.set_version(static_cast<uint32_t>(info.version));
    profile.set_about(info.about);
  }
  FillErrors(status);
  FillTenants(status);
  FillCluster(status);
  return status;
}

absl::StatusOr<v1::ListJobsResponse> Admin::ListJobs(const v1::ListJobsRequest& request) const {
  v1::ShowJobsRequest asked;
  ASSIGN_OR_RETURN(const int32_t limit, ListLimit(request.limit(), 1000));
  asked.set_limit(limit);
  if (request.has_tenant()) asked.set_tenant(request.tenant());
  asked.set_id(request.id());
  std::vector<v1::JobStatus> jobs = parts_.hooks.jobs();
  v1::ListJobsResponse response;
  bool truncated = false;
  if (parts_.hooks.jobs_elsewhere != nullptr) {
    JobsElsewhere others = parts_.hooks.jobs_elsewhere(asked);
    std::move(others.jobs.begin(), others.jobs.end(), std::back_inserter(jobs));
    KeepOncePerScope(jobs);
    truncated = others.truncated;
    for (v1::NotReached& one : others.not_reached) *response.add_not_reached() = std::move(one);
  }
  // What others sent is held to it, too: tenants rely on it.
  truncated |= KeepAsked(asked, jobs);
  response.set_truncated(truncated);
  for (v1::JobStatus& job : jobs) *response.add_jobs() = std::move(job);
  return response;
}

absl::StatusOr<v1::PinJobResponse> Admin::PinJob(const v1::PinJobRequest& request,
                                                 const Actor& by) {
  RETURN_IF_ERROR(CheckPinnedJob(request.tenant(), request.job_id()));
  if (request.ttl_ms() <= 0 || request.ttl_ms() > kMaxPinMs) {
    return Malformed(absl::StrCat("ttl_ms: ", request.ttl_ms(), ", expected 1 to ", kMaxPinMs));
  }
  const WallTime expires = WallNow() + std::chrono::milliseconds(request.ttl_ms());
  ASSIGN_OR_RETURN(const uint32_t pinned,
                   parts_.hooks.pin_job(request.tenant(), request.job_id(), expires, by));
  v1::PinJobResponse response;
  response.set_pinned(pinned);
  response.set_expires_ms(Ms(expires));
  return response;
}

absl::StatusOr<v1::UnpinJobResponse> Admin::UnpinJob(const v1::UnpinJobRequest& request,
                                                     const Actor& by) {
  RETURN_IF_ERROR(CheckPinnedJob(request.tenant(), request.job_id()));
  return parts_.hooks.unpin_job(request, by);
}

absl::StatusOr<v1::SetPlanningResponse> Admin::SetPlanning(const v1::SetPlanningRequest& request,
                                                           const Actor& by) {
  if (!request.enabled() && request.why().empty()) {
    return Malformed("why: say why planning is switched off; every trainer will log it");
  }
  const absl::Status set = parts_.planning.Set(request.enabled(), request.why(), by);
  if (!set.ok()) return Malformed(set.message());
  v1::SetPlanningResponse response;
  FillPlanning(parts_.planning.Get(), *response.mutable_planning());
  return response;
}

}  // namespace bucketd
