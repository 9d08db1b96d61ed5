// Rank agreement: all ranks of a scope of a job get the same plan, byte for byte, or the same
// error. Stands between the calls that name a job and the broker.
//
// A scope (tenant, job, generation, name) gathers calls; each presents a signature
// (job_signature.h) for its ranks. Meanwhile the plan is fetched: for each of the first two
// signatures there is one call in the broker, in nobody's name ("probe"). If the broker asks it for
// the graph, one of the callers that wait is asked, and the next probe takes its place in the
// broker's queue. A rank is present while a call that speaks for it waits, so whoever uploads is
// present again when it comes back. The verdict falls when all ranks are present, or when the first
// of their deadlines nears:
//   one signature, and its plan is here    the pin is written, then all get the plan
//   one signature, planning failed         all get that error
//   several signatures                     RANKS_DIFFER, with the first differing node of two
//   a rank's call cannot be served         its error, naming it
//   graphs ranks are missing at the deadline      RANKS_MISSING
// An agreed scope stays agreed: a rank that calls again gets the same bytes, one that presents
// something else is refused alone. A failed one stays failed until every rank has heard of it.
//
// What was agreed is pinned (pins.h): the next generation that presents the same signature gets the
// same bytes, as does the same generation after a restart of the server.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/config/options.h"
#include "server/graphs/graph_intake.h"
#include "server/graphs/graph_store.h"
#include "server/jobs/agreement_metrics.h"
#include "server/jobs/agreement_state.h"
#include "server/jobs/job_call.h"
#include "server/jobs/pins.h"
#include "server/jobs/replan.h"
#include "server/plans/plan_broker.h"
#include "server/plans/plan_cache.h"
#include "server/plans/plan_request.h"

namespace bucketd {

// For people and status pages.
struct ScopeSnapshot {
  std::string name;
  std::string stage;  // "gathering", "agreed", ...
  uint32_t size = 0;
  int64_t ranks_waiting = 0;
  int64_t signatures = 0;   // of those that wait
  std::string plan_sha256;  // hex; of an agreed scope
  bool pinned = false;
  std::string error;              // of a failed scope
  double seconds = 0.0;           // since its first rank came
  std::vector<uint32_t> missing;  // while ranks are waited for: the first kMaxSnapshotMissing
};
struct JobSnapshot {
  std::string tenant;
  std::string id;
  uint64_t generation = 0;
  std::optional<std::string> unplanned;
  double idle_seconds = 0.0;
  int64_t scopes_in_all = 0;
  std::vector<ScopeSnapshot> scopes;  // by name, at most kMaxSnapshotScopes
};
inline constexpr size_t kMaxSnapshotScopes = 64;
inline constexpr size_t kMaxSnapshotMissing = 64;

class Agreement {
 public:
  using Answer = PlanBroker::Answer;
  using Done = PlanBroker::Done;
  using CallId = uint64_t;  // 0: already answered

  struct Parts {  // all outlive the agreement
    PlanBroker& broker;
    PlanCache& cache;
    GraphStore& graphs;
    GraphIntake& intake;
    Pins& pins;
    Timers& timers;
    AgreementMetrics& metrics;
    const ServerOptions& options;
    // Why new generations stay unplanned, if they do. Asked once a generation; short, no locks of
    // ours within. Null: never.
    std::function<std::optional<std::string>()> planning_disabled;
    // The profile that is called "name@version" in a job's memory. Like planning_disabled.
    std::function<absl::StatusOr<ProfilePtr>(const std::string&)> find_profile;
  };

  explicit Agreement(const Parts& parts);
  ~Agreement();  // Stop()s
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Calls `done` exactly once, here or on another thread, without locks held. Never blocks.
  // O(ranks of the call + log of callers) but for the one call that completes a scope.
  CallId GetPlan(const JobCall& job, std::shared_ptr<PlanRequest> request, SteadyTime deadline,
                 Done done);
  // The same for a call that cannot be served, whatever the other ranks present: `why` is its
  // answer, and that of all others, who are not to wait for it in vain. What passes is told to it
  // alone.
  void Refuse(const JobCall& job, const absl::Status& why, Done done);
  // Drops this caller alone, who is answered CANCELLED; its ranks are not present any more. No-op
  // if it has been answered.
  void Cancel(CallId call);

  // Lets go of the job's pins: how many. `done` runs on another thread, or here with OVERLOADED.
  void ReleaseJob(const std::string& tenant, const std::string& job,
                  std::function<void(absl::StatusOr<int64_t>)> done);

  // Scopes that are not complete will not be, here: their callers are answered DRAINING.
  void BeginDrain();
  // No work is done any more. After the last call has been answered.
  void Stop();

  // In order of tenant and id, after `after`, at most `limit`.
  std::vector<JobSnapshot> Jobs(const std::optional<std::string>& tenant, const JobName& after,
                                size_t limit) const;

 private:
  using Lock = std::lock_guard<std::mutex>;
  struct Arrival {
    const JobCall& job;
    std::shared_ptr<PlanRequest> request;
    std::string signature;
    Digest signature_id;  // of the signature and `fresh`
    SteadyTime deadline;
    Done done;
  };
  struct Work {
    std::function<void()> run;      // on a worker
    std::function<void()> refused;  // if there is no room for it
  };
  // What is to be done once the lock is given back.
  struct Actions {
    std::vector<std::pair<Done, Answer>> answers;
    std::vector<std::function<void()>> calls;
    std::vector<Work> work;
  };
  using JobMemoryRead = absl::StatusOr<std::optional<JobMemory>>;
  using PinRead = absl::StatusOr<std::optional<Pin>>;

  void Run(Actions actions);
  void Submit(Work work);

  // Of the following, those that take Actions need the lock.

  // agreement.cc: jobs, calls.
  CallId Admit(Arrival& arrival, Actions& actions);
  void AdmitRefused(const JobCall& job, const absl::Status& why, Done done, Actions& actions);
  absl::StatusOr<JobState*> JobOf(const JobCall& call, Actions& actions);
  absl::Status MakeRoom();
  void Touch(JobState& job);
  void EraseJob(JobState& job);
  void BeginGeneration(JobState& job, uint64_t generation, Actions& actions);
  void DecideWhetherPlanned(JobState& job, Actions& actions);
  void UnplannedIsStored(const JobName& name, uint64_t generation);
  void AnswerUnplanned(ScopeState& scope, Actions& actions);
  absl::StatusOr<ScopeState*> ScopeOf(JobState& job, const JobCall& call, Actions& actions);
  void StartLoading(ScopeState& scope, Actions& actions);
  void Loaded(uint64_t scope_id, const JobMemoryRead& memory, const PinRead& pin);
  void ScopeLoaded(ScopeState& scope, const PinRead& pin, Actions& actions);
  void UseMemory(JobState& job, const JobMemoryRead& memory, Actions& actions);
  void UsePin(ScopeState& scope, const Pin& pin, Actions& actions);
  JobMemory MemoryOf(const JobState& job) const;
  // Without the lock, with storing_. ABORTED if the job is in another generation.
  absl::Status PutMemory(const JobName& name, uint64_t generation, const std::string& agreed_scope);
  void EraseScope(ScopeState& scope);
  void KeepBytes(ScopeState& scope, int64_t bytes);
  Done Take(CallId call);  // out of all tables; REQUIRES: it waits
  void Remove(CallId call, Answer answer, Actions& actions);
  void AnswerAll(ScopeState& scope, const Answer& answer, Actions& actions);
  void SweepJobs();
  void SweepPins();

  // agreement_gather.cc: ranks that come, the plan that is fetched.
  CallId Wait(ScopeState& scope, Arrival& arrival, Actions& actions);
  absl::Status CheckRoom(const ScopeState& scope, const Arrival& arrival) const;
  void ReplaceEarlier(ScopeState& scope, const JobCall& job, Actions& actions);
  Presented& PresentedBy(ScopeState& scope, const Arrival& arrival);
  void KeepRequest(ScopeState& scope, Presented& presented, Arrival& arrival, CallId call,
                   Actions& actions);
  void CameWithGraph(ScopeState& scope, Presented& presented, Arrival& arrival, CallId call,
                     Actions& actions);
  void Gather(ScopeState& scope, Actions& actions);
  void Fetch(ScopeState& scope, Presented& presented, Actions& actions);
  void FetchPinned(const ScopeState& scope, const Presented& presented, Actions& actions);
  void AskBroker(const ScopeState& scope, Presented& presented, Actions& actions);
  void Probe(uint64_t scope_id, size_t index, uint64_t probe,
             const std::shared_ptr<PlanRequest>& request);
  absl::Status UseFixedProfile(JobState& job, PlanRequest& request);
  void RetryLater(const ScopeState& scope, Presented& presented, const absl::Status& error);
  void PinnedPlanRead(uint64_t scope_id, size_t index, uint64_t probe,
                      const absl::StatusOr<PlanReplyPtr>& reply);
  void PlanCame(uint64_t scope_id, size_t index, uint64_t probe, const Answer& answer);
  void PlanFailed(ScopeState& scope, Presented& presented, const absl::Status& error,
                  CallId inline_sender, Actions& actions);
  void RetryFetch(uint64_t scope_id, size_t index);
  void AskForGraph(Presented& presented, int64_t lease_ms, Actions& actions);
  void CancelProbe(Presented& presented, Actions& actions);
  void ArmDeadline(ScopeState& scope);
  void DeadlineReached(uint64_t scope_id);
  void AtDeadline(ScopeState& scope, Actions& actions);

  // agreement_replan.cc: whether the pin's plan, which is here, gives way to one under the costs of
  // now. False: it does not.
  bool StartReplan(const ScopeState& scope, Presented& presented, Actions& actions);
  void FreshPlanCame(ScopeState& scope, Presented& presented, const Answer& answer,
                     Actions& actions);
  void Judge(const ScopeState& scope, Presented& presented, GraphPtr graph, const PlanAnswer& fresh,
             Actions& actions);
  void Judged(uint64_t scope_id, size_t index, uint64_t probe, const PlanAnswer& fresh,
              const absl::StatusOr<ReplanVerdict>& verdict);
  void KeepPin(Presented& presented);
  void KeepPin(const ScopeState& scope, Presented& presented, ReplanOutcome outcome,
               absl::string_view why);
  // From here on all ranks wait for nothing else.
  void LimitReplan(const ScopeState& scope, Presented& presented);
  void ReplanTimedOut(uint64_t scope_id, size_t index);
  // False: there is nothing to give up.
  bool GiveUpReplan(const ScopeState& scope, Presented& presented, Actions& actions);

  // agreement_verdict.cc: how a scope ends.
  void StartComparing(ScopeState& scope, Actions& actions);
  void CompareStep(ScopeState& scope, Actions& actions);
  void CompareTimedOut(uint64_t scope_id);
  void Differ(ScopeState& scope, absl::string_view difference, absl::string_view node,
              Actions& actions);
  enum class Coming { kHere, kComing, kNever };
  Coming GraphToCompare(ScopeState& scope, Presented& presented, Actions& actions);
  void SeekDifference(ScopeState& scope, Actions& actions);
  void DifferenceFound(uint64_t scope_id, const std::string& text, const std::string& node);
  void DecodeToCompare(ScopeState& scope, Presented& presented,
                       std::shared_ptr<const InlineGraph> graph, Actions& actions);
  void DecodedToCompare(uint64_t scope_id, size_t index);
  void StartStoring(ScopeState& scope, Presented& presented, Actions& actions);
  // The pin that stands, with its plan: this one, or one that another server was first with.
  struct Standing {
    Pin pin;
    PlanReplyPtr reply;
  };
  absl::StatusOr<Standing> StoreAgreed(const JobName& job, const std::string& scope, const Pin& pin,
                                       const PlanReplyPtr& reply);
  void Stored(uint64_t scope_id, const absl::StatusOr<Standing>& standing);
  // False: that plan is none for these ranks; they have been told.
  bool UseStanding(ScopeState& scope, const absl::StatusOr<Standing>& standing, Actions& actions);
  void Agreed(ScopeState& scope, const absl::Status& stored, Actions& actions);
  void ReadPinAgain(const ScopeState& scope, Actions& actions);
  void PinReadAgain(uint64_t scope_id, const PinRead& pin);
  void AnswerAgreed(const ScopeState& scope, absl::Span<const uint32_t> ranks,
                    absl::string_view signature, Done done, Actions& actions);
  absl::StatusOr<PlanReplyPtr> ReadPinnedPlan(const Pin& pin);
  void AnswerFailed(ScopeState& scope, absl::Span<const uint32_t> ranks, Done done,
                    Actions& actions);
  // Transient verdicts are forgotten at once.
  void Fail(ScopeState& scope, const absl::Status& verdict, AgreementOutcome outcome,
            bool transient, Actions& actions);
  void FailAtDeadline(ScopeState& scope, Actions& actions);
  void Settle(ScopeState& scope);  // what only waiting ranks needed goes
  absl::Status DifferError(const ScopeState& scope, absl::string_view difference,
                           absl::string_view node) const;
  absl::Status MissingError(const ScopeState& scope) const;
  static absl::Status RefusedError(const ScopeState& scope, absl::Span<const uint32_t> ranks,
                                   const absl::Status& why);
  static absl::Status LostProfileError(const JobState& job, absl::string_view asked,
                                       absl::string_view id, const absl::Status& why);
  std::string WhereTheOthersAre(const ScopeState& scope, absl::Span<const uint32_t> missing) const;
  absl::Status DiffersAloneError(const ScopeState& scope, absl::Span<const uint32_t> ranks,
                                 absl::string_view signature) const;

  ScopeState* Find(uint64_t scope_id);
  // Null unless this fetch is still wanted.
  Presented* FindProbe(ScopeState* scope, size_t index, uint64_t probe);

  const Parts parts_;
  std::mutex storing_;  // over what is written for one event; workers only, before mutex_
  mutable std::mutex mutex_;
  std::map<JobName, std::unique_ptr<JobState>> jobs_;
  std::list<JobState*> by_use_;  // the one that was used longest ago first
  absl::flat_hash_map<uint64_t, ScopeState*> scopes_;
  absl::flat_hash_map<CallId, WaitingCall> calls_;
  int64_t kept_bytes_ = 0;  // ScopeState::bytes of all
  uint64_t last_id_ = 0;
  Timers::Id sweep_timer_ = 0;
  bool draining_ = false;
  WorkerPool workers_;  // last: what it runs uses the rest
};

}  // namespace bucketd
