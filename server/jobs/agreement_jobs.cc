// Agreement: jobs and their generations.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/jobs/agreement.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxKeptBytes = int64_t{512} << 20;
constexpr int kJobsTriedForRoom = 64;

absl::Status GenerationOver(absl::string_view job, uint64_t now, uint64_t called) {
  return MakeError(Reason::kGenerationOver, absl::StrCat("job \"", job, "\" is in generation ", now,
                                                         "; this call is of generation ", called));
}

absl::string_view StageName(ScopeStage stage) {
  switch (stage) {
    case ScopeStage::kLoading:
      return "loading";
    case ScopeStage::kGathering:
      return "gathering";
    case ScopeStage::kComparing:
      return "comparing";
    case ScopeStage::kStoring:
      return "storing";
    case ScopeStage::kAgreed:
      return "agreed";
    case ScopeStage::kFailed:
      return "failed";
  }
  return "";
}

ScopeSnapshot SnapshotOf(const ScopeState& scope) {
  ScopeSnapshot snapshot;
  snapshot.name = scope.name;
  snapshot.stage = std::string(StageName(scope.stage));
  snapshot.size = scope.size;
  snapshot.ranks_waiting = static_cast<int64_t>(scope.live.size());
  snapshot.signatures = static_cast<int64_t>(scope.live_signatures);
  if (scope.stage == ScopeStage::kAgreed) snapshot.plan_sha256 = ToHex(scope.agreed.plan_sha256);
  snapshot.pinned = scope.pinned;
  if (scope.stage == ScopeStage::kFailed) snapshot.error = std::string(scope.verdict.message());
  snapshot.seconds = std::chrono::duration<double>(Clock::now() - scope.since).count();
  if (scope.stage != ScopeStage::kLoading && scope.stage != ScopeStage::kGathering) return snapshot;
  for (uint32_t rank = 0; rank < scope.size; ++rank) {
    if (snapshot.missing.size() == kMaxSnapshotMissing) break;
    if (!scope.live.contains(rank)) snapshot.missing.push_back(rank);
  }
  return snapshot;
}

}  // namespace

absl::StatusOr<JobState*> Agreement::JobOf(const JobCall& call, Actions& actions) {
  const JobName name(call.tenant, call.id);
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) {
    const absl::Status room = MakeRoom();
    if (!room.ok()) return room;
    auto made = std::make_unique<JobState>();
    JobState& job = *made;
    job.name = name;
    job.generation = call.generation;
    job.at = by_use_.insert(by_use_.end(), &job);
    jobs_.emplace(name, std::move(made));
    parts_.metrics.jobs.Increment();
    return &job;
  }
  JobState& job = *found->second;
  if (call.generation < job.generation) {
    return GenerationOver(call.id, job.generation, call.generation);
  }
  if (call.generation > job.generation) BeginGeneration(job, call.generation, actions);
  return &job;
}

// Jobs that nobody waits for make room: what they agreed on is pinned.
absl::Status Agreement::MakeRoom() {
  const auto max_jobs = static_cast<size_t>(parts_.options.max_jobs);
  const auto full = [&] { return jobs_.size() >= max_jobs || kept_bytes_ > kMaxKeptBytes; };
  int tries = 0;
  for (auto at = by_use_.begin(); full() && at != by_use_.end() && tries < kJobsTriedForRoom;
       ++tries) {
    JobState& job = **at++;
    if (job.waiting == 0) EraseJob(job);
  }
  if (!full()) return absl::OkStatus();
  return MakeError(Reason::kOverloaded, "too many jobs have ranks that wait",
                   {.limit = parts_.options.max_jobs, .actual = -1, .node = {}});
}

void Agreement::Touch(JobState& job) {
  job.used = Clock::now();
  by_use_.splice(by_use_.end(), by_use_, job.at);
  if (sweep_timer_ != 0) return;
  sweep_timer_ =
      parts_.timers.Schedule(job.used + parts_.options.job_idle, [this] { SweepJobs(); });
}

void Agreement::SweepJobs() {
  const Lock lock(mutex_);
  sweep_timer_ = 0;
  const SteadyTime oldest = Clock::now() - parts_.options.job_idle;
  std::vector<JobState*> idle;
  for (JobState* job : by_use_) {
    if (job->used > oldest) break;
    if (job->waiting == 0) idle.push_back(job);
  }
  for (JobState* job : idle) EraseJob(*job);
  if (by_use_.empty()) return;
  // Of jobs that wait for long, no sooner than in a while.
  const SteadyTime next = std::max(by_use_.front()->used + parts_.options.job_idle,
                                   Clock::now() + parts_.options.job_idle / 4);
  sweep_timer_ = parts_.timers.Schedule(next, [this] { SweepJobs(); });
}

void Agreement::SweepPins() {
  using std::chrono::milliseconds;
  const milliseconds period =
      std::clamp<milliseconds>(parts_.options.pin_ttl / 4, milliseconds(10), std::chrono::hours(1));
  parts_.timers.Schedule(Clock::now() + period, [this] {
    Submit({.run = [this] { parts_.pins.DropExpired(); }, .refused = [] {}});
    SweepPins();
  });
}

void Agreement::EraseJob(JobState& job) {
  while (!job.scopes.empty()) EraseScope(*job.scopes.begin()->second);
  by_use_.erase(job.at);
  const JobName name = job.name;  // outlives the job
  jobs_.erase(name);
  parts_.metrics.jobs.Decrement();
}

void Agreement::BeginGeneration(JobState& job, uint64_t generation, Actions& actions) {
  while (!job.scopes.empty()) {
    ScopeState& scope = *job.scopes.begin()->second;
    if (!scope.live.empty()) {
      const absl::Status over = GenerationOver(job.name.second, generation, job.generation);
      Fail(scope, over, AgreementOutcome::kSuperseded, true, actions);
    } else {
      for (Presented& presented : scope.presented) CancelProbe(presented, actions);
      EraseScope(scope);
    }
  }
  job.generation = generation;
  job.unplanned.reset();
  job.unplanned_is_stored = false;
  job.profiles.clear();
  job.last_agreed.clear();
  if (job.loaded) DecideWhetherPlanned(job, actions);
}

// At a generation's first call, for all of its scopes.
void Agreement::DecideWhetherPlanned(JobState& job, Actions& actions) {
  if (parts_.planning_disabled == nullptr) return;
  job.unplanned = parts_.planning_disabled();
  if (!job.unplanned.has_value()) return;
  // First stored, then told: a restart of the server must not plan for the other half of the ranks.
  const auto done = [this, name = job.name, generation = job.generation] {
    UnplannedIsStored(name, generation);
  };
  const auto store = [this, done, name = job.name, generation = job.generation] {
    {
      const std::lock_guard storing(storing_);
      const absl::Status put = PutMemory(name, generation, "");
      if (!put.ok()) {
        LogLine(spdlog::level::warn, "unplanned, and the store does not know",
                {{"job", name.second}, {"error", std::string(put.message())}});
      }
    }
    done();
  };
  actions.work.push_back({.run = store, .refused = done});
}

absl::Status Agreement::PutMemory(const JobName& name, uint64_t generation,
                                  const std::string& agreed_scope) {
  JobMemory memory;
  {
    const Lock lock(mutex_);
    const auto found = jobs_.find(name);
    if (found == jobs_.end() || found->second->generation != generation) {
      return absl::AbortedError("a later generation has begun");
    }
    memory = MemoryOf(*found->second);
  }
  if (!agreed_scope.empty()) memory.last_scope = agreed_scope;
  return parts_.pins.PutJob(name.first, name.second, memory);
}

void Agreement::UnplannedIsStored(const JobName& name, uint64_t generation) {
  Actions actions;
  {
    const Lock lock(mutex_);
    const auto found = jobs_.find(name);
    if (found == jobs_.end()) return;
    JobState& job = *found->second;
    if (job.generation != generation || !job.unplanned.has_value()) return;
    job.unplanned_is_stored = true;
    while (!job.scopes.empty()) AnswerUnplanned(*job.scopes.begin()->second, actions);
  }
  Run(std::move(actions));
}

void Agreement::AnswerUnplanned(ScopeState& scope, Actions& actions) {
  AnswerAll(scope, PlanAnswer{PlanOutcome::kUnplanned, nullptr, 0, *scope.job->unplanned}, actions);
  EraseScope(scope);
}

std::vector<JobSnapshot> Agreement::Jobs(const std::optional<std::string>& tenant,
                                         const JobName& after, size_t limit) const {
  std::vector<JobSnapshot> jobs;
  const Lock lock(mutex_);
  const SteadyTime now = Clock::now();
  for (auto at = jobs_.upper_bound(after); at != jobs_.end() && jobs.size() < limit; ++at) {
    const JobState& job = *at->second;
    if (tenant.has_value() && job.name.first != *tenant) continue;
    JobSnapshot& snapshot = jobs.emplace_back();
    snapshot.tenant = job.name.first;
    snapshot.id = job.name.second;
    snapshot.generation = job.generation;
    snapshot.unplanned = job.unplanned;
    snapshot.idle_seconds = std::chrono::duration<double>(now - job.used).count();
    snapshot.scopes_in_all = static_cast<int64_t>(job.scopes.size());
    for (const auto& [name, scope] : job.scopes) {
      if (snapshot.scopes.size() >= kMaxSnapshotScopes) break;
      snapshot.scopes.push_back(SnapshotOf(*scope));
    }
  }
  return jobs;
}

}  // namespace bucketd
