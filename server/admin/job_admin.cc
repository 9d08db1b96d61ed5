#include "server/admin/job_admin.h"

#include <future>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/admin/job_list.h"
#include "server/base/errors.h"

namespace bucketd {
namespace {

// Operators care who waits and how it ended; what the server does meanwhile is one word.
std::string StateOf(const JobSnapshot& job, const ScopeSnapshot& scope) {
  if (job.unplanned.has_value()) return "unplanned";
  if (scope.stage == "agreed" || scope.stage == "failed") return scope.stage;
  return scope.missing.empty() ? "planning" : "waiting";
}

v1::JobStatus StatusOf(const JobSnapshot& job, const ScopeSnapshot& scope, int64_t now_ms) {
  v1::JobStatus status;
  status.set_tenant(job.tenant);
  status.set_id(job.id);
  status.set_generation(job.generation);
  status.set_scope(scope.name);
  status.set_size(scope.size);
  status.set_state(StateOf(job, scope));
  const bool all_came = status.state() == "agreed";
  status.set_arrived(all_came ? scope.size : static_cast<uint32_t>(scope.ranks_waiting));
  for (const uint32_t rank : scope.missing) status.add_missing(rank);
  status.set_since_ms(now_ms - static_cast<int64_t>(scope.seconds * 1e3));
  if (job.unplanned.has_value()) {
    status.set_about(*job.unplanned);
  } else if (!scope.error.empty()) {
    status.set_about(scope.error);
  } else if (!scope.plan_sha256.empty()) {
    status.set_about(absl::StrCat("plan ", scope.plan_sha256.substr(0, 12),
                                  scope.pinned ? ", pinned" : ", not pinned"));
  }
  return status;
}

absl::StatusOr<uint32_t> Counted(const absl::StatusOr<int64_t>& count, const std::string& job) {
  if (!count.ok()) return WithReason(Reason::kStoreUnavailable, count.status());
  if (*count == 0) {
    return MakeError(Reason::kPlanNotCached,
                     absl::StrCat("nothing is pinned for job \"", job, "\""));
  }
  return static_cast<uint32_t>(*count);
}

// What was kept is gone; what the others remember would stand, and their ranks would wait on. Jobs
// that fit a pattern and have nothing that is kept are theirs to find, once all others are
// released.
void ForgetElsewhere(const v1::UnpinJobRequest& request, const AdminHooks& hooks,
                     Agreement::Released& released, v1::UnpinJobResponse& response) {
  v1::ForgetJobsRequest forget;
  forget.set_tenant(request.tenant());
  forget.set_by_operator(true);
  for (const std::string& job : released.jobs) forget.add_job_id(job);
  if (request.pattern() && !released.more) forget.set_pattern(request.job_id());
  ForgottenElsewhere forgotten = hooks.forget_elsewhere(forget);
  released.jobs.merge(forgotten.jobs);
  for (v1::NotReached& one : forgotten.not_reached) *response.add_not_reached() = std::move(one);
}

absl::StatusOr<v1::UnpinJobResponse> Unpin(Agreement& agreement, const v1::UnpinJobRequest& request,
                                           const Actor& by, const AdminHooks& hooks) {
  std::promise<absl::StatusOr<Agreement::Released>> promise;
  agreement.ReleaseJobs({.tenant = request.tenant(),
                         .job = request.job_id(),
                         .pattern = request.pattern(),
                         .by_operator = true,
                         .by = by},
                        [&](absl::StatusOr<Agreement::Released> released) {
                          promise.set_value(std::move(released));
                        });
  // What was refused has a reason of its own; a job without pins is released already.
  ASSIGN_OR_RETURN(Agreement::Released released, promise.get_future().get());
  v1::UnpinJobResponse response;
  if (hooks.forget_elsewhere != nullptr) ForgetElsewhere(request, hooks, released, response);
  response.set_released(static_cast<uint32_t>(released.pins));
  response.set_jobs(static_cast<uint32_t>(released.jobs.size()));
  response.set_more(released.more);
  return response;
}

}  // namespace

std::vector<v1::JobStatus> JobsOf(const Agreement& agreement) {
  const int64_t now_ms = WallNowMs();
  std::vector<v1::JobStatus> list;
  for (const JobSnapshot& job : agreement.Jobs({}, kMostJobs)) {
    for (const ScopeSnapshot& scope : job.scopes) list.push_back(StatusOf(job, scope, now_ms));
  }
  return list;
}

void AddJobHooks(Agreement& agreement, Pins& pins, AdminHooks& hooks) {
  hooks.pin_job = [&pins](const std::string& tenant, const std::string& job, WallTime expires,
                          const Actor& by) {
    return Counted(pins.Extend(tenant, job, expires, by), job);
  };
  hooks.unpin_job = [&agreement, others = hooks](const v1::UnpinJobRequest& request,
                                                 const Actor& by) {
    return Unpin(agreement, request, by, others);
  };
}

}  // namespace bucketd
