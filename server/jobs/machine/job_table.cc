#include "server/jobs/machine/job_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/base/errors.h"
#include "server/jobs/machine/scope_errors.h"

namespace bucketd {
namespace {

constexpr size_t kMaxScopesOfJob = 4096;
constexpr int64_t kMaxKeptBytes = int64_t{512} << 20;
constexpr int kJobsTriedForRoom = 64;
constexpr std::chrono::milliseconds kWatch{1000};

absl::Status GenerationOver(absl::string_view job, uint64_t now, uint64_t called) {
  return MakeError(Reason::kGenerationOver,
                   absl::StrCat("job \"", job, "\" is in generation ", now,
                                "; this call is of generation ", called),
                   {.limit = static_cast<int64_t>(now), .actual = static_cast<int64_t>(called)});
}

constexpr uint64_t kMaxFirstGeneration = 1'000'000;  // of a job that is not known here any more

absl::Status CheckFirst(uint64_t called) {
  if (called <= kMaxFirstGeneration) return absl::OkStatus();
  return MakeError(Reason::kJobInvalid,
                   absl::StrCat("job.generation: ", called,
                                " of a job that is new here; a "
                                "generation counts restarts, expected at most ",
                                kMaxFirstGeneration));
}

}  // namespace

Actions JobTable::Handle(SteadyTime now, Event event) {
  context_.now = now;
  NoticeAStop();
  std::visit([this](auto& what) { On(what); }, event);
  WatchForStops();
  return std::exchange(context_.out, {});
}

// A process that runs is later by less.
std::chrono::milliseconds JobTable::WatchPeriod() const {
  return std::min(kWatch, context_.limits.taken_over_after / 4);
}

void JobTable::WatchForStops() {
  if (context_.limits.taken_over_after.count() == 0 || watch_timer_ != 0 || scopes_.empty()) return;
  watch_timer_ = context_.NewId();
  ran_ = context_.now;
  context_.Do(ArmTimer{{0, 0, watch_timer_}, ran_ + WatchPeriod()});
}

// After a short one, ranks that seem to be here may have left while the process could not hear of
// it. After a long one others may have taken its jobs over.
void JobTable::NoticeAStop() {
  if (watch_timer_ == 0) return;
  // It may have stood still for all of that.
  const SteadyTime::duration since = context_.now - ran_;
  if (since <= 2 * WatchPeriod()) return;
  context_.stopped = context_.now;
  if (since < context_.limits.taken_over_after) return;
  ran_ = context_.now;
  std::set<ScopeId> doubtful = unkept_;
  doubtful.insert(keeping_);
  for (const ScopeId id : doubtful) {
    Scope* scope = Find(id);
    if (scope != nullptr) scope->Doubt();
  }
}

// ---- calls

void JobTable::On(RankCame& event) {
  if (context_.draining) {
    context_.Tell(event.call, DrainingError());
  } else if (event.request->cached_only) {
    context_.Tell(event.call,
                  MakeError(Reason::kJobInvalid,
                            "cached_only: ranks that have to agree cannot do without a plan"));
  } else {
    Scope* scope = Admit(event.call, event.job, event.request->asker.call);
    if (scope != nullptr) MakePlace(event, *scope);
    Pass(scope, event);
  }
}

void JobTable::On(const RankRefused& event) {
  // What passes is told to its caller alone: it comes again.
  if (context_.draining || absl::IsUnavailable(event.why)) {
    context_.Tell(event.call, event.why);
  } else {
    Pass(Admit(event.call, event.job, {}), event);
  }
}

void JobTable::On(const CallerLeft& event) {
  const auto found = context_.calls.find(event.call);
  if (found != context_.calls.end()) Pass(found->second.scope, event);
}

Scope* JobTable::Admit(CallId call, const JobCall& job_call, const CallIds& ids) {
  const absl::StatusOr<Job*> job = JobOf(job_call);
  if (!job.ok()) {
    context_.Tell(call, job.status());
    return nullptr;
  }
  Touch(**job);
  // Of an unplanned generation only scopes that have agreed are left.
  const bool has_agreed = (*job)->scopes.contains(job_call.scope);
  if ((*job)->unplanned.has_value() && (*job)->unplanned_is_stored && !has_agreed) {
    context_.Tell(call, PlanAnswer{PlanOutcome::kUnplanned, nullptr, 0, *(*job)->unplanned});
    return nullptr;
  }
  const absl::StatusOr<Scope*> scope = ScopeOf(**job, job_call, ids);
  if (scope.ok()) return *scope;
  context_.Tell(call, scope.status());
  return nullptr;
}

absl::StatusOr<Scope*> JobTable::ScopeOf(Job& job, const JobCall& call, const CallIds& ids) {
  const auto found = job.scopes.find(call.scope);
  if (found != job.scopes.end()) {
    Scope& scope = *found->second;
    if (scope.size() == call.size) return &scope;
    return MakeError(Reason::kJobInvalid,
                     absl::StrCat("job.size: scope ", call.scope, " has ", scope.size(),
                                  " ranks, as the first of them said; this call says ", call.size,
                                  "; a job that goes on with another number of ranks needs a "
                                  "higher generation"),
                     {.limit = scope.size(), .actual = call.size});
  }
  if (job.scopes.size() >= kMaxScopesOfJob) {
    return MakeError(
        Reason::kJobInvalid,
        absl::StrCat("job.scope: a generation has at most ", kMaxScopesOfJob, " scopes"),
        {.limit = kMaxScopesOfJob});
  }
  job.ranks = std::max(job.ranks, call.size);
  auto made = std::make_unique<Scope>(context_, job, context_.NewId(), call, ids);
  Scope* scope = made.get();
  job.scopes.emplace(call.scope, std::move(made));
  scopes_.emplace(scope->id(), scope);
  return scope;
}

// ---- jobs

absl::StatusOr<Job*> JobTable::JobOf(const JobCall& call) {
  const JobName name(call.tenant, call.id);
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) {
    RETURN_IF_ERROR(CheckFirst(call.generation));
    RETURN_IF_ERROR(MakeRoom(call.share, 1));
    auto made = std::make_unique<Job>();
    Job& job = *made;
    job.name = name;
    job.share = call.share;
    job.generation = call.generation;
    job.at = by_use_.insert(by_use_.end(), &job);
    jobs_.emplace(name, std::move(made));
    context_.job_places.Add(job);
    return &job;
  }
  Job& job = *found->second;
  if (call.generation < job.generation) {
    return GenerationOver(call.id, job.generation, call.generation);
  }
  RETURN_IF_ERROR(job.CheckStep(call.generation));
  if (call.generation > job.generation) BeginGeneration(job, call.generation);
  // A scope more needs room as a job more does, and it may be this job that gives way.
  if (context_.job_places.kept_bytes() > kMaxKeptBytes && !job.scopes.contains(call.scope)) {
    RETURN_IF_ERROR(MakeRoom(call.share, 0));
    return JobOf(call);
  }
  return &job;
}

// Jobs that nobody waits for go first: what they agreed on is pinned.
absl::Status JobTable::MakeRoom(const Shares::Path& newcomer, int64_t new_jobs) {
  const JobPlaces& places = context_.job_places;
  for (int tries = 0; tries <= kJobsTriedForRoom; ++tries) {
    const bool too_many = jobs() + new_jobs > context_.limits.max_jobs;
    if (!too_many && places.kept_bytes() <= kMaxKeptBytes) return absl::OkStatus();
    Job* job = too_many ? places.JobGivesWayTo(newcomer) : places.BytesGiveWayTo(newcomer);
    if (job == nullptr) break;
    Displace(*job);
  }
  return MakeError(Reason::kOverloaded, "too many jobs have ranks that wait",
                   {.limit = context_.limits.max_jobs});
}

void JobTable::Displace(Job& job) {
  if (job.waiting > 0) {
    context_.out.counts.push_back(Tally::kJobDisplaced);
    EndScopes(job, MakeError(Reason::kOverloaded,
                             "too many jobs have ranks that wait, most of them yours: one of "
                             "another gets the place",
                             {.limit = context_.limits.max_jobs}));
  }
  Erase(job);
}

void JobTable::MakePlace(const RankCame& event, const Scope& scope) {
  const int64_t limit = context_.limits.max_waiting_ranks;
  if (static_cast<int64_t>(context_.calls.size()) < limit || !scope.WouldWait(event)) return;
  const CallId call = context_.call_places.GivesWayTo(event.job.share);
  if (call == 0) return;
  context_.out.counts.push_back(Tally::kRankDisplaced);
  Scope& other = *context_.calls.find(call)->second.scope;
  other.GiveWay(call, MakeError(Reason::kOverloaded,
                                "too many ranks wait for each other, most of them yours: one of "
                                "another gets the place",
                                {.limit = limit}));
  if (&other == &scope) return;  // which goes on with who comes
  if (!other.is_deserted()) other.Step();
  if (other.is_deserted() || other.over()) Erase(other);
}

void JobTable::Touch(Job& job) {
  job.used = context_.now;
  context_.job_places.Use(job);
  by_use_.splice(by_use_.end(), by_use_, job.at);
  if (sweep_timer_ != 0) return;
  sweep_timer_ = context_.NewId();
  context_.Do(ArmTimer{{0, 0, sweep_timer_}, job.used + context_.limits.job_idle});
}

void JobTable::Sweep() {
  sweep_timer_ = 0;
  const SteadyTime oldest = context_.now - context_.limits.job_idle;
  std::vector<Job*> idle;
  for (Job* job : by_use_) {
    if (job->used > oldest) break;
    if (job->waiting == 0) idle.push_back(job);
  }
  for (Job* job : idle) Erase(*job);
  if (by_use_.empty()) return;
  // Of jobs that wait for long, no sooner than in a while.
  const SteadyTime next = std::max(by_use_.front()->used + context_.limits.job_idle,
                                   context_.now + context_.limits.job_idle / 4);
  sweep_timer_ = context_.NewId();
  context_.Do(ArmTimer{{0, 0, sweep_timer_}, next});
}

void JobTable::On(const TimerFired& event) {
  if (event.timer.scope != 0) {
    Pass(Find(event.timer.scope), event);
  } else if (event.timer.number == sweep_timer_) {
    Sweep();
  } else if (event.timer.number == keep_timer_) {
    keep_timer_ = 0;
    if (keeping_ == 0) KeepNext();
  } else if (event.timer.number == watch_timer_) {
    watch_timer_ = 0;
  }
}

void JobTable::On(const JobReleased& event) {
  const auto found = jobs_.find(event.job);
  if (found == jobs_.end()) return;
  Job& job = *found->second;
  if (event.by_operator) {
    EndScopes(job, MakeError(Reason::kOverloaded, "an operator released the job: come again"));
  }
  if (job.waiting == 0) Erase(job);
}

void JobTable::On(const DrainBegan& event) {
  context_.draining = true;
  std::vector<Scope*> all;
  for (const auto& [id, scope] : scopes_) all.push_back(scope);
  // In the order in which they came.
  std::sort(all.begin(), all.end(),
            [](const Scope* a, const Scope* b) { return a->id() < b->id(); });
  for (Scope* scope : all) Pass(scope, event);
}

void JobTable::BeginGeneration(Job& job, uint64_t generation) {
  EndScopes(job, GenerationOver(job.name.second, generation, job.generation));
  job.generation = generation;
  job.unplanned.reset();
  job.unplanned_is_stored = false;
  job.profiles.clear();
  job.last_agreed.clear();
  job.ranks = 0;
  if (job.loaded) DecideWhetherPlanned(job);
}

void JobTable::EndScopes(Job& job, const absl::Status& why) {
  while (!job.scopes.empty()) {
    Scope& scope = *job.scopes.begin()->second;
    scope.Supersede(why);
    Erase(scope);
  }
}

// ---- tables

Scope* JobTable::Find(ScopeId id) const {
  const auto found = scopes_.find(id);
  return found == scopes_.end() ? nullptr : found->second;
}

bool JobTable::Wants(const FetchId& fetch) const {
  Scope* scope = Find(fetch.scope);
  return scope != nullptr && scope->Wants(fetch);
}

absl::StatusOr<JobMemory> JobTable::MemoryOf(const JobName& name, uint64_t generation,
                                             ScopeId scope) const {
  const auto found = jobs_.find(name);
  if (found == jobs_.end() || found->second->generation != generation || !found->second->loaded ||
      (scope != 0 && !scopes_.contains(scope))) {
    return absl::AbortedError("a later generation has begun, or the job has begun anew");
  }
  return found->second->Memory();
}

Shares::Path JobTable::ShareOf(const JobName& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? Shares::Path() : found->second->share;
}

Shares::Path JobTable::ShareOf(ScopeId scope) const {
  const Scope* found = Find(scope);
  return found == nullptr ? Shares::Path() : found->job().share;
}

void JobTable::Erase(Scope& scope) {
  scope.Close();
  scopes_.erase(scope.id());
  unkept_.erase(scope.id());
  auto& scopes = scope.job().scopes;
  scopes.erase(scopes.find(scope.name()));
}

void JobTable::Erase(Job& job) {
  while (!job.scopes.empty()) Erase(*job.scopes.begin()->second);
  by_use_.erase(job.at);
  context_.job_places.Remove(job);
  jobs_.erase(jobs_.find(job.name));
}

std::vector<JobSnapshot> JobTable::Snapshots(SteadyTime now, const JobName& after,
                                             size_t limit) const {
  std::vector<JobSnapshot> snapshots;
  for (auto at = jobs_.upper_bound(after); at != jobs_.end() && snapshots.size() < limit; ++at) {
    snapshots.push_back(SnapshotOf(*at->second, now));
  }
  return snapshots;
}

std::vector<std::string> JobTable::IdsOf(const std::string& tenant) const {
  std::vector<std::string> ids;
  for (auto at = jobs_.lower_bound({tenant, ""}); at != jobs_.end(); ++at) {
    if (at->first.first != tenant) break;
    ids.push_back(at->first.second);
  }
  return ids;
}

}  // namespace bucketd
