// What happens to the machine: calls that come and go, time, and what became of its actions
// (actions.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "passes/replan.h"
#include "server/jobs/machine/actions.h"
#include "server/jobs/machine/job_call.h"

namespace bucketd {

// Ranks of a job ask for their plan.
struct RankCame {
  CallId call = 0;
  JobCall job;
  std::shared_ptr<PlanRequest> request;
  std::string signature;  // job_signature.h
  Digest signature_id{};  // of the signature and `fresh`
  SteadyTime deadline;    // the caller's own
};
// They ask for something that cannot be served, whatever the others present.
struct RankRefused {
  CallId call = 0;
  JobCall job;
  absl::Status why;
};
// The caller is gone. No-op if it has been answered.
struct CallerLeft {
  CallId call = 0;
};

struct ScopeLoaded {
  ScopeId scope = 0;
  absl::StatusOr<std::optional<JobMemory>> memory;
  absl::StatusOr<std::optional<Pin>> pin;
};
struct PinLoadedAgain {
  ScopeId scope = 0;
  absl::StatusOr<std::optional<Pin>> pin;
};
struct PinnedPlanCame {
  FetchId fetch;
  absl::StatusOr<PlanReplyPtr> reply;
};
struct PlanCame {
  FetchId fetch;
  absl::StatusOr<PlanAnswer> answer;
};
struct PlansWeighed {
  FetchId fetch;
  PlanAnswer fresh;
  absl::StatusOr<ReplanVerdict> verdict;
};
struct GraphDecoded {  // or not: then it is not here
  ScopeId scope = 0;
  size_t signature = 0;
};
struct DifferenceSought {
  ScopeId scope = 0;
  uint64_t number = 0;
  std::string text;  // "": none was found
  std::string node;
};
// ABORTED: a later generation has begun elsewhere. FAILED_PRECONDITION: the tenant's quota.
struct AgreedStored {
  ScopeId scope = 0;
  absl::StatusOr<StandingPin> standing;
  // Another server has decided otherwise on this generation, and was first: that stands. `standing`
  // is then a pin that stands all the same, or CANCELLED: not with this plan.
  std::optional<JobMemory> elsewhere = {};
};
struct UnplannedStored {
  JobName job;
  uint64_t generation = 0;
  std::optional<JobMemory> elsewhere = {};  // as above
};
struct TimerFired {
  TimerId timer;
};
struct JobReleased {
  JobName job;
  bool by_operator = false;  // who means it though ranks wait
};
struct DrainBegan {};

using Event = std::variant<RankCame, RankRefused, CallerLeft, ScopeLoaded, PinLoadedAgain,
                           PinnedPlanCame, PlanCame, PlansWeighed, GraphDecoded, DifferenceSought,
                           AgreedStored, UnplannedStored, TimerFired, JobReleased, DrainBegan>;

}  // namespace bucketd
