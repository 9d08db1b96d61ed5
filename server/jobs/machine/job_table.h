// Rank agreement as a state machine: all jobs with their scopes. Events go in one at a time, with
// the time at which they happen; what comes out is data. Not thread-safe, never blocks, reads no
// clock: server/jobs/agreement.h is the shell around it.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/jobs/machine/context.h"
#include "server/jobs/machine/events.h"
#include "server/jobs/machine/scope.h"
#include "server/jobs/machine/snapshot.h"

namespace bucketd {

class JobTable {
 public:
  // `around` outlives this.
  JobTable(const AgreementLimits& limits, const Surroundings& around) : context_(limits, around) {}
  JobTable(const JobTable&) = delete;
  JobTable& operator=(const JobTable&) = delete;

  // Every call that an event brings is told about exactly once, in this or a later event's actions,
  // by an answer or by an AnswerFromStore.
  // O(ranks of the call + log of callers) but for an event that ends a scope.
  Actions Handle(SteadyTime now, Event event);

  CallId NewCall() { return context_.NewId(); }
  bool Waits(CallId call) const { return context_.calls.contains(call); }
  // Whether what this fetch brings is still wanted.
  bool Wants(const FetchId& fetch) const;
  // What is to be kept of the job. ABORTED if it is in another generation, or if it began anew and
  // has not been read or this scope is not there any more (0: whichever).
  absl::StatusOr<JobMemory> MemoryOf(const JobName& name, uint64_t generation,
                                     ScopeId scope = 0) const;

  // By whom what is done for it is shared; empty: it is not there any more.
  Shares::Path ShareOf(const JobName& job) const;
  Shares::Path ShareOf(ScopeId scope) const;

  int64_t jobs() const { return static_cast<int64_t>(jobs_.size()); }
  int64_t scopes() const { return static_cast<int64_t>(scopes_.size()); }
  int64_t waiting_ranks() const { return context_.waiting_ranks; }
  // In order of tenant and id, after `after`, at most `limit`.
  std::vector<JobSnapshot> Snapshots(SteadyTime now, const JobName& after, size_t limit) const;
  std::vector<std::string> IdsOf(const std::string& tenant) const;

 private:
  void On(RankCame& event);
  void On(const RankRefused& event);
  void On(const CallerLeft& event);
  void On(const ScopeLoaded& event);
  void On(const AgreedStored& event);
  void On(const UnplannedStored& event);
  void On(const TimerFired& event);
  void On(const JobReleased& event);
  void On(const DrainBegan& event);
  // All others are of one scope alone.
  template <typename ScopeEvent>
  void On(const ScopeEvent& event) {
    Pass(Find(ScopeOf(event)), event);
  }
  static ScopeId ScopeOf(const PlanCame& event) { return event.fetch.scope; }
  static ScopeId ScopeOf(const PinnedPlanCame& event) { return event.fetch.scope; }
  static ScopeId ScopeOf(const PlansWeighed& event) { return event.fetch.scope; }
  template <typename ScopeEvent>
  static ScopeId ScopeOf(const ScopeEvent& event) {
    return event.scope;
  }
  // To the scope, if it is still there; then it moves on.
  template <typename ScopeEvent>
  void Pass(Scope* scope, ScopeEvent& event) {
    if (scope == nullptr) return;
    scope->Handle(event);
    scope->Step();
    if (scope->over()) Erase(*scope);
  }

  // The job in the call's generation, or the answer to a call that has none.
  absl::StatusOr<Job*> JobOf(const JobCall& call);
  absl::StatusOr<Scope*> ScopeOf(Job& job, const JobCall& call, const CallIds& ids);
  // The call's scope; null if the call has been answered instead.
  Scope* Admit(CallId call, const JobCall& job, const CallIds& ids);
  // For so many jobs more, and for what a scope keeps.
  absl::Status MakeRoom(const Shares::Path& newcomer, int64_t new_jobs);
  // For a call that would wait in this scope where too many do.
  void MakePlace(const RankCame& event, const Scope& scope);
  void Displace(Job& job);
  void Touch(Job& job);
  void Sweep();
  void BeginGeneration(Job& job, uint64_t generation);
  void EndScopes(Job& job, const absl::Status& why);
  void DecideWhetherPlanned(Job& job);
  // Another server was first with this generation. Scopes that began otherwise begin again, but for
  // `but`, which has an answer of its own.
  void Obey(Job& job, const JobMemory& elsewhere, const Scope* but);
  void EndUnplanned(Job& job);
  // Whether the store knows more of a job than a server that held it before another did.
  static bool HasGoneOn(const Job& job, const absl::StatusOr<std::optional<JobMemory>>& memory);
  void UseMemory(Job& job, const absl::StatusOr<std::optional<JobMemory>>& memory);
  // What the store could not keep is tried again, one scope after another, until it is back.
  void KeepLater(ScopeId id);
  void KeepNext();
  // Of a replica. That it was stopped is noticed at the first event after that.
  std::chrono::milliseconds WatchPeriod() const;
  void WatchForStops();
  void NoticeAStop();
  Scope* Find(ScopeId id) const;
  void Erase(Scope& scope);
  void Erase(Job& job);

  MachineContext context_;
  std::map<JobName, std::unique_ptr<Job>> jobs_;
  std::list<Job*> by_use_;  // the one that was used longest ago first
  absl::flat_hash_map<ScopeId, Scope*> scopes_;
  uint64_t sweep_timer_ = 0;
  std::set<ScopeId> unkept_;  // that await a pin
  ScopeId keeping_ = 0;       // whose pin is being written again
  ScopeId kept_last_ = 0;
  uint64_t keep_timer_ = 0;
  uint64_t watch_timer_ = 0;
  SteadyTime ran_;  // when that was armed
};

}  // namespace bucketd
