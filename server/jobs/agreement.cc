#include "server/jobs/agreement.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/jobs/job_signature.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 2;  // wait for the store, compare graphs, send verdicts
constexpr int kMaxQueuedWork = 1 << 16;
constexpr size_t kMaxScopesOfJob = 4096;
// Whoever ends a scope hands this many answers out by itself; a verdict for more is a worker's job.
constexpr size_t kAnswersInline = 64;

Digest SignatureId(absl::string_view signature, bool fresh) {
  Sha256Stream hash;
  hash.Append(signature);
  hash.Append(fresh ? "fresh" : "");
  return hash.Finish();
}

}  // namespace

Agreement::Agreement(const Parts& parts) : parts_(parts), workers_(kWorkers, kMaxQueuedWork) {
  SweepPins();
}

Agreement::~Agreement() { Stop(); }

void Agreement::Stop() { workers_.Stop(); }

void Agreement::Run(Actions actions) {
  if (actions.answers.size() > kAnswersInline) {
    const auto answers =
        std::make_shared<std::vector<std::pair<Done, Answer>>>(std::move(actions.answers));
    const auto send = [answers] {
      for (auto& [done, answer] : *answers) done(std::move(answer));
    };
    Submit({.run = send, .refused = send});
  } else {
    for (auto& [done, answer] : actions.answers) done(std::move(answer));
  }
  for (const std::function<void()>& call : actions.calls) call();
  for (Work& work : actions.work) Submit(std::move(work));
}

void Agreement::Submit(Work work) {
  const auto run = [call = CurrentCall(), run = std::move(work.run)] {
    const WorkFor names(call);
    run();
  };
  if (!workers_.TrySubmit(run)) work.refused();
}

Agreement::CallId Agreement::GetPlan(const JobCall& job, std::shared_ptr<PlanRequest> request,
                                     SteadyTime deadline, Done done) {
  const CallIds ids = request->call;
  const WorkFor names(ids);
  // Hashing is done before the lock is taken.
  std::string signature = SignatureOf(request->key, request->profile_as_asked);
  const Digest id = SignatureId(signature, job.fresh);
  Arrival arrival{job, std::move(request), std::move(signature), id, deadline, std::move(done)};
  Actions actions;
  CallId call = 0;
  {
    const Lock lock(mutex_);
    call = Admit(arrival, actions);
  }
  Run(std::move(actions));
  return call;
}

Agreement::CallId Agreement::Admit(Arrival& arrival, Actions& actions) {
  const auto answer = [&](Answer a) {
    actions.answers.emplace_back(std::move(arrival.done), std::move(a));
    return CallId{0};
  };
  if (draining_) return answer(MakeError(Reason::kDraining, "the server is shutting down"));
  if (arrival.request->cached_only) {
    return answer(MakeError(Reason::kJobInvalid,
                            "cached_only: ranks that have to agree cannot do without a plan"));
  }
  const absl::StatusOr<JobState*> job = JobOf(arrival.job, actions);
  if (!job.ok()) return answer(job.status());
  Touch(**job);
  if ((*job)->unplanned.has_value() && (*job)->unplanned_is_stored) {
    return answer(PlanAnswer{PlanOutcome::kUnplanned, nullptr, 0, *(*job)->unplanned});
  }
  const absl::StatusOr<ScopeState*> found = ScopeOf(**job, arrival.job, actions);
  if (!found.ok()) return answer(found.status());
  ScopeState& scope = **found;
  if (scope.call.request.empty()) scope.call = arrival.request->call;
  switch (scope.stage) {
    case ScopeStage::kAgreed:
      AnswerAgreed(scope, arrival.job.ranks, arrival.signature, std::move(arrival.done), actions);
      return 0;
    case ScopeStage::kFailed:
      AnswerFailed(scope, arrival.job.ranks, std::move(arrival.done), actions);
      return 0;
    case ScopeStage::kStoring:
      if (!SameSignature(scope.agreed_signature, arrival.signature)) {
        return answer(DiffersAloneError(scope, arrival.job.ranks, arrival.signature));
      }
      break;
    default:
      break;
  }
  return Wait(scope, arrival, actions);
}

void Agreement::Refuse(const JobCall& job, const absl::Status& why, Done done) {
  Actions actions;
  {
    const Lock lock(mutex_);
    AdmitRefused(job, why, std::move(done), actions);
  }
  Run(std::move(actions));
}

void Agreement::AdmitRefused(const JobCall& call, const absl::Status& why, Done done,
                             Actions& actions) {
  const auto answer = [&](Answer a) {
    actions.answers.emplace_back(std::move(done), std::move(a));
  };
  if (draining_ || absl::IsUnavailable(why)) return answer(why);
  const absl::StatusOr<JobState*> job = JobOf(call, actions);
  if (!job.ok()) return answer(job.status());
  Touch(**job);
  if ((*job)->unplanned.has_value() && (*job)->unplanned_is_stored) {
    return answer(PlanAnswer{PlanOutcome::kUnplanned, nullptr, 0, *(*job)->unplanned});
  }
  const absl::StatusOr<ScopeState*> found = ScopeOf(**job, call, actions);
  if (!found.ok()) return answer(found.status());
  ScopeState& scope = **found;
  if (scope.stage == ScopeStage::kStoring || scope.stage == ScopeStage::kAgreed) return answer(why);
  if (scope.stage == ScopeStage::kFailed) {
    return AnswerFailed(scope, call.ranks, std::move(done), actions);
  }
  if (scope.refusal.ok()) scope.refusal = RefusedError(scope, call.ranks, why);
  answer(scope.refusal);
  scope.told.insert(call.ranks.begin(), call.ranks.end());
  if (scope.stage == ScopeStage::kLoading) return;  // the others may have a pin of this generation
  Fail(scope, scope.refusal, AgreementOutcome::kFailed, false, actions);
}

absl::StatusOr<ScopeState*> Agreement::ScopeOf(JobState& job, const JobCall& call,
                                               Actions& actions) {
  std::unique_ptr<ScopeState>* slot = nullptr;
  const auto found = job.scopes.find(call.scope);
  if (found != job.scopes.end()) {
    ScopeState& scope = *found->second;
    if (scope.size == call.size) return &scope;
    return MakeError(Reason::kJobInvalid,
                     absl::StrCat("job.size: scope ", call.scope, " has ", scope.size,
                                  " ranks, as the first of them said; this call says ", call.size),
                     {.limit = scope.size, .actual = call.size, .node = {}});
  }
  if (job.scopes.size() >= kMaxScopesOfJob) {
    return MakeError(
        Reason::kJobInvalid,
        absl::StrCat("job.scope: a generation has at most ", kMaxScopesOfJob, " scopes"),
        {.limit = kMaxScopesOfJob, .actual = -1, .node = {}});
  }
  slot = &job.scopes[call.scope];
  *slot = std::make_unique<ScopeState>();
  ScopeState& scope = **slot;
  scope.id = ++last_id_;
  scope.name = call.scope;
  scope.job = &job;
  scope.size = call.size;
  scope.since = Clock::now();
  scopes_.emplace(scope.id, &scope);
  parts_.metrics.scopes.Increment();
  StartLoading(scope, actions);
  return &scope;
}

void Agreement::StartLoading(ScopeState& scope, Actions& actions) {
  const JobName& name = scope.job->name;
  actions.work.push_back(
      {.run =
           [this, id = scope.id, name, scope_name = scope.name, job_too = !scope.job->loaded] {
             JobMemoryRead memory = std::optional<JobMemory>();
             if (job_too) memory = parts_.pins.LoadJob(name.first, name.second);
             Loaded(id, memory, parts_.pins.LoadPin(name.first, name.second, scope_name));
           },
       .refused =
           [this, id = scope.id] {
             const absl::Status busy = absl::UnavailableError("too much is waiting for the store");
             Loaded(id, busy, busy);
           }});
}

void Agreement::Loaded(uint64_t scope_id, const JobMemoryRead& memory, const PinRead& pin) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    if (scope == nullptr) return;
    JobState& job = *scope->job;
    if (!job.loaded) UseMemory(job, memory, actions);
    // If a later generation was in the store, the job's scopes are gone.
    scope = Find(scope_id);
    if (scope != nullptr)
      ScopeLoaded(*scope, memory.ok() ? pin : PinRead(memory.status()), actions);
  }
  Run(std::move(actions));
}

void Agreement::ScopeLoaded(ScopeState& scope, const PinRead& pin, Actions& actions) {
  const JobState& job = *scope.job;
  if (scope.stage != ScopeStage::kLoading) return;
  if (!pin.ok()) {
    parts_.metrics.pins_unread.Increment();
    LogLine(spdlog::level::warn, "it is unknown whether there is a pin",
            {{"job", job.name.second},
             {"scope", scope.name},
             {"error", std::string(pin.status().message())}});
  }
  if (job.unplanned.has_value()) {
    if (job.unplanned_is_stored) AnswerUnplanned(scope, actions);
    return;
  }
  scope.stage = ScopeStage::kGathering;
  if (pin.ok() && pin->has_value()) UsePin(scope, **pin, actions);
  if (scope.stage != ScopeStage::kGathering) return;
  if (scope.refusal.ok()) {
    Gather(scope, actions);
  } else {
    Fail(scope, scope.refusal, AgreementOutcome::kFailed, false, actions);
  }
}

void Agreement::UseMemory(JobState& job, const JobMemoryRead& memory, Actions& actions) {
  if (!memory.ok() || !memory->has_value() || (*memory)->generation < job.generation) {
    job.loaded = true;
    DecideWhetherPlanned(job, actions);
    return;
  }
  const JobMemory& known = **memory;
  // Somebody else, or we before a restart, have seen a later one; whether that is planned has been
  // decided.
  if (known.generation > job.generation) BeginGeneration(job, known.generation, actions);
  job.loaded = true;
  job.unplanned = known.unplanned;
  job.unplanned_is_stored = known.unplanned.has_value();
  job.last_agreed = known.last_scope;
  for (const auto& [asked, id] : known.profiles)
    job.profiles.try_emplace(asked, FixedProfile{id, {}});
}

void Agreement::UsePin(ScopeState& scope, const Pin& pin, Actions& actions) {
  const uint64_t generation = scope.job->generation;
  scope.pin_signature = SignatureOf(pin.plan_key, pin.profile_as_asked);
  scope.pin = pin;
  if (pin.generation != generation || pin.size != scope.size) return;
  // This generation has agreed, before a restart or a long pause. Perhaps all ranks but this one
  // are running with that plan: nobody else will come.
  scope.stage = ScopeStage::kAgreed;
  scope.agreed = pin;
  scope.agreed_signature = scope.pin_signature;
  scope.outcome = PlanOutcome::kPinned;
  scope.pinned = true;
  for (Presented& presented : scope.presented) CancelProbe(presented, actions);
  while (!scope.deadlines.empty()) {
    const CallId call = scope.deadlines.begin()->second;
    const WaitingCall& waiting = calls_.find(call)->second;
    const RankList ranks = waiting.ranks;
    // Beyond the first few signatures the text is gone; those are not the one that was agreed on,
    // unless the ranks differ in nearly everything.
    const std::string signature = scope.presented[waiting.signature].text;
    AnswerAgreed(scope, ranks, signature, Take(call), actions);
  }
  Settle(scope);
}

JobMemory Agreement::MemoryOf(const JobState& job) const {
  JobMemory memory{.generation = job.generation,
                   .unplanned = job.unplanned,
                   .profiles = {},
                   .last_scope = job.last_agreed};
  for (const auto& [asked, profile] : job.profiles) {
    memory.profiles.emplace_back(asked, profile.id);
  }
  return memory;
}

ScopeState* Agreement::Find(uint64_t scope_id) {
  const auto found = scopes_.find(scope_id);
  return found == scopes_.end() ? nullptr : found->second;
}

void Agreement::KeepBytes(ScopeState& scope, int64_t bytes) {
  scope.bytes += bytes;
  kept_bytes_ += bytes;
}

void Agreement::EraseScope(ScopeState& scope) {
  parts_.timers.Cancel(scope.deadline_timer);
  parts_.timers.Cancel(scope.compare_timer);
  KeepBytes(scope, -scope.bytes);
  scopes_.erase(scope.id);
  parts_.metrics.scopes.Decrement();
  JobState& job = *scope.job;
  const std::string name = scope.name;  // outlives the scope
  job.scopes.erase(name);
}

Agreement::Done Agreement::Take(CallId id) {
  const auto found = calls_.find(id);
  WaitingCall& call = found->second;
  ScopeState& scope = *call.scope;
  for (const uint32_t rank : call.ranks) scope.live.erase(rank);
  Presented& presented = scope.presented[call.signature];
  presented.calls.erase(id);
  presented.live -= static_cast<uint32_t>(call.ranks.size());
  if (presented.calls.empty()) --scope.live_signatures;
  scope.deadlines.erase({call.answer_by, id});
  --scope.job->waiting;
  parts_.metrics.waiting_ranks.Decrement(static_cast<double>(call.ranks.size()));
  Done done = std::move(call.done);
  calls_.erase(found);
  return done;
}

void Agreement::Remove(CallId call, Answer answer, Actions& actions) {
  actions.answers.emplace_back(Take(call), std::move(answer));
}

void Agreement::AnswerAll(ScopeState& scope, const Answer& answer, Actions& actions) {
  while (!scope.deadlines.empty()) Remove(scope.deadlines.begin()->second, answer, actions);
}

void Agreement::Cancel(CallId call) {
  if (call == 0) return;
  Actions actions;
  {
    const Lock lock(mutex_);
    const auto found = calls_.find(call);
    if (found == calls_.end()) return;
    ScopeState& scope = *found->second.scope;
    Remove(call, MakeError(Reason::kCancelled, "the caller went away"), actions);
    const bool undecided = scope.stage < ScopeStage::kStoring;
    if (undecided && scope.live.empty()) {
      for (Presented& presented : scope.presented) CancelProbe(presented, actions);
      EraseScope(scope);
    } else if (undecided && draining_) {
      Fail(scope, MakeError(Reason::kDraining, "the server is shutting down"),
           AgreementOutcome::kSuperseded, true, actions);
    }
  }
  Run(std::move(actions));
}

void Agreement::ReleaseJob(const std::string& tenant, const std::string& job,
                           std::function<void(absl::StatusOr<int64_t>)> done) {
  const auto run = [this, tenant, job, done] {
    const absl::StatusOr<int64_t> released = parts_.pins.Release(tenant, job);
    if (released.ok()) {
      const Lock lock(mutex_);
      const auto found = jobs_.find(JobName(tenant, job));
      if (found != jobs_.end() && found->second->waiting == 0) EraseJob(*found->second);
    }
    done(released);
  };
  Submit({.run = run, .refused = [done] {
            done(MakeError(Reason::kOverloaded, "too much is waiting for the store"));
          }});
}

void Agreement::BeginDrain() {
  Actions actions;
  {
    const Lock lock(mutex_);
    draining_ = true;
    std::vector<ScopeState*> hopeless;
    for (const auto& [id, scope] : scopes_) {
      const bool complete = scope->live.size() == scope->size;
      const bool undecided = scope->stage < ScopeStage::kStoring;
      if (undecided && !scope->live.empty() && !complete) hopeless.push_back(scope);
    }
    const absl::Status draining = MakeError(Reason::kDraining, "the server is shutting down");
    for (ScopeState* scope : hopeless) {
      Fail(*scope, draining, AgreementOutcome::kSuperseded, true, actions);
    }
  }
  Run(std::move(actions));
}

}  // namespace bucketd
