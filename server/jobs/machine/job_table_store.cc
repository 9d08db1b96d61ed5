// JobTable: what the store says of a job, and what has been written to it.
#include <algorithm>
#include <chrono>
#include <utility>

#include "server/jobs/machine/job_table.h"
#include "server/jobs/machine/scope_errors.h"

namespace bucketd {
namespace {

constexpr std::chrono::seconds kKeepAgain{2};

}  // namespace

// At a generation's first call, for all of its scopes. First stored, then told: a restart of the
// server must not plan for the other half of the ranks.
void JobTable::DecideWhetherPlanned(Job& job) {
  job.unplanned = context_.around.PlanningDisabled();
  if (job.unplanned.has_value()) context_.Do(StoreUnplanned{job.name, job.generation});
}

void JobTable::On(const UnplannedStored& event) {
  const auto found = jobs_.find(event.job);
  if (found == jobs_.end()) return;
  Job& job = *found->second;
  if (job.generation != event.generation || !job.unplanned.has_value()) return;
  if (event.elsewhere.has_value()) {
    Obey(job, *event.elsewhere, nullptr);
  } else {
    EndUnplanned(job);
  }
}

// A scope that has agreed stays so: its ranks run with that plan. The store does not know where it
// was away then, and may have been told otherwise since by whoever was asked next.
void JobTable::EndUnplanned(Job& job) {
  job.unplanned_is_stored = true;
  std::vector<Scope*> others;
  for (const auto& [name, scope] : job.scopes) {
    if (scope->stage() != Scope::Stage::kAgreed) others.push_back(scope.get());
  }
  for (Scope* scope : others) {
    scope->AnswerUnplanned();
    Erase(*scope);
  }
}

void JobTable::On(const AgreedStored& event) {
  const bool again = event.scope == keeping_;
  if (again) keeping_ = 0;
  const Scope* scope = Find(event.scope);
  if (scope != nullptr && event.elsewhere.has_value()) {
    Obey(scope->job(), *event.elsewhere, scope);
  }
  Pass(Find(event.scope), event);
  scope = Find(event.scope);
  if (scope != nullptr && scope->awaits_pin()) {
    KeepLater(event.scope);
  } else if (again) {
    KeepNext();  // the store is back
  }
}

void JobTable::KeepLater(ScopeId id) {
  unkept_.insert(id);
  if (keep_timer_ != 0) return;
  keep_timer_ = context_.NewId();
  context_.Do(ArmTimer{{0, 0, keep_timer_}, context_.now + kKeepAgain});
}

// In turns: what one scope's write fails for may be its own.
void JobTable::KeepNext() {
  if (unkept_.empty()) return;
  auto next = unkept_.upper_bound(kept_last_);
  if (next == unkept_.end()) next = unkept_.begin();
  kept_last_ = keeping_ = *next;
  unkept_.erase(next);
  Find(keeping_)->StoreAgain();
}

void JobTable::Obey(Job& job, const JobMemory& elsewhere, const Scope* but) {
  job.unplanned = elsewhere.unplanned;
  job.profiles.clear();
  for (const auto& [asked, id] : elsewhere.profiles) {
    job.profiles.emplace(asked, Job::FixedProfile{id, {}});
  }
  if (job.unplanned.has_value()) {
    EndUnplanned(job);
    return;
  }
  std::vector<Scope*> began;
  for (const auto& [name, scope] : job.scopes) {
    const bool is_open = scope->stage() < Scope::Stage::kAgreed;
    if (is_open && scope.get() != but) began.push_back(scope.get());
  }
  for (Scope* scope : began) {
    scope->Supersede(AnotherServerWasFirst());
    Erase(*scope);
  }
}

void JobTable::On(const ScopeLoaded& event) {
  const Scope* scope = Find(event.scope);
  if (scope == nullptr) return;
  Job& job = scope->job();
  if (!job.loaded || HasGoneOn(job, event.memory)) UseMemory(job, event.memory);
  // If a later generation was in the store, or one that runs unplanned, the job's scopes are gone.
  Pass(Find(event.scope), event);
}

bool JobTable::HasGoneOn(const Job& job, const absl::StatusOr<std::optional<JobMemory>>& memory) {
  if (!memory.ok() || !memory->has_value()) return false;
  const JobMemory& known = **memory;
  return known.generation > job.generation ||
         (known.generation == job.generation && known.unplanned.has_value() &&
          !job.unplanned_is_stored);
}

void JobTable::UseMemory(Job& job, const absl::StatusOr<std::optional<JobMemory>>& memory) {
  job.loaded = false;
  if (memory.ok() && memory->has_value()) {
    const uint64_t called = std::exchange(job.generation, (*memory)->generation);
    const absl::Status step = job.CheckStep(called);
    if (step.ok()) {
      job.generation = called;
    } else {
      EndScopes(job, step);
    }
  }
  if (!memory.ok() || !memory->has_value() || (*memory)->generation < job.generation) {
    job.loaded = true;
    DecideWhetherPlanned(job);
    return;
  }
  const JobMemory& known = **memory;
  // Somebody else, or we before a restart, have seen a later one; whether that is planned has been
  // decided.
  if (known.generation > job.generation) BeginGeneration(job, known.generation);
  job.loaded = true;
  job.unplanned = known.unplanned;
  job.unplanned_is_stored = known.unplanned.has_value();
  job.last_agreed = known.last_scope;
  job.ranks = std::max(job.ranks, known.ranks);
  for (const auto& [asked, id] : known.profiles) {
    job.profiles.try_emplace(asked, Job::FixedProfile{id, {}});
  }
  if (job.unplanned_is_stored) EndUnplanned(job);
}

}  // namespace bucketd
