#include "server/admin/job_admin.h"

#include <chrono>
#include <future>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/base/errors.h"

namespace bucketd {
namespace {

constexpr size_t kMaxJobs = 10'000;

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

std::vector<v1::JobStatus> List(const Agreement& agreement) {
  const int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  std::vector<v1::JobStatus> list;
  for (const JobSnapshot& job : agreement.Jobs(std::nullopt, {}, kMaxJobs)) {
    for (const ScopeSnapshot& scope : job.scopes) list.push_back(StatusOf(job, scope, now_ms));
  }
  return list;
}

absl::StatusOr<uint32_t> Counted(const absl::StatusOr<int64_t>& count, const std::string& job) {
  if (!count.ok()) return WithReason(Reason::kStoreUnavailable, count.status());
  if (*count == 0) {
    return MakeError(Reason::kPlanNotCached,
                     absl::StrCat("nothing is pinned for job \"", job, "\""));
  }
  return static_cast<uint32_t>(*count);
}

}  // namespace

void AddJobHooks(Agreement& agreement, Pins& pins, AdminHooks& hooks) {
  hooks.jobs = [&agreement] { return List(agreement); };
  hooks.pin_job = [&pins](const std::string& tenant, const std::string& job, WallTime expires,
                          const Actor& by) {
    return Counted(pins.Extend(tenant, job, expires, by), job);
  };
  hooks.unpin_job = [&agreement](const v1::UnpinJobRequest& request,
                                 const Actor& by) -> absl::StatusOr<v1::UnpinJobResponse> {
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
    ASSIGN_OR_RETURN(const Agreement::Released released, promise.get_future().get());
    v1::UnpinJobResponse response;
    response.set_released(static_cast<uint32_t>(released.pins));
    response.set_jobs(static_cast<uint32_t>(released.jobs));
    response.set_more(released.more);
    return response;
  };
}

}  // namespace bucketd
