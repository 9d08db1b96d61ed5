// Rank agreement: all ranks of a scope of a job get the same plan, byte for byte, or the same
// error. Stands between the calls that name a job and the broker.
//
// This is the shell: the lock, the callers, the clock, and the hands of a state machine that
// decides everything (machine/job_table.h, machine/scope.h). What it decides comes out as actions;
// they are done here without the lock, and what comes of them goes back in as events.
//
// What was agreed is pinned (pins.h): the next generation that presents the same signature gets the
// same bytes, as does the same generation after a restart of the server.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "proto/peer.pb.h"
#include "server/base/shares.h"
#include "server/base/stripes.h"
#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/config/options.h"
#include "server/costs/cost_catalog.h"
#include "server/graphs/graph_intake.h"
#include "server/graphs/graph_store.h"
#include "server/jobs/agreement_metrics.h"
#include "server/jobs/machine/job_call.h"
#include "server/jobs/machine/job_table.h"
#include "server/jobs/pins.h"
#include "server/plans/plan_broker.h"
#include "server/plans/plan_cache.h"
#include "server/plans/plan_request.h"
#include "server/plans/planning_switch.h"

namespace bucketd {

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
    PlanningSwitch& planning;
    const CostCatalog& costs;
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

  struct Release {
    std::string tenant;
    std::string job;
    bool pattern = false;      // `job` is one, as of fnmatch(3), for all jobs that it fits
    bool by_operator = false;  // who waits is told to come again
    Actor by;
    Shares::Path share = {};  // ShareOf whoever asks (base/shares.h); an operator has none
  };
  struct Released {
    std::set<std::string> jobs;
    int64_t pins = 0;
    bool more = false;  // jobs that the pattern fits: say it again
  };
  // Lets go of the pins of jobs and forgets the jobs themselves, unless ranks wait and that is not
  // an operator's wish. `done` runs on another thread, or with OVERLOADED where WorkerPool says.
  void ReleaseJobs(const Release& what, std::function<void(absl::StatusOr<Released>)> done);
  // Forgets jobs that another server of the store has released. Which ones the pattern fits.
  std::set<std::string> Forget(const v1::ForgetJobsRequest& what);

  // Scopes that are not complete will not be, here: their callers are answered DRAINING.
  void BeginDrain();
  // No work is done any more. After the last call has been answered.
  void Stop();

  // In order of tenant and id, after `after`, at most `limit`.
  std::vector<JobSnapshot> Jobs(const JobName& after, size_t limit) const;

 private:
  class HereNow;
  struct Waiting {
    Done done;
    Shares::Path share;  // of whoever called
  };
  // What is to be done without the lock.
  struct Due {
    std::vector<std::pair<Done, Answer>> answers;
    Shares::Path share;  // of one of those
    std::vector<Note> notes;
    std::vector<std::function<void()>> calls;
  };

  void Happen(Event event);
  // A call's own event; 0 if it has been answered.
  template <typename CallEvent>
  CallId Come(CallEvent event, Done done);
  Due Take(Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(const Count& count);
  void ShowSizes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Waiting TakeCaller(uint64_t call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run(Due due);
  // `run` on a worker when it is the share's turn; else `refused` (WorkerPool).
  static void Submit(WorkerPool& pool, const Shares::Path& share, std::function<void()> run,
                     std::function<void()> refused);
  template <typename Action>
  Shares::Path ShareOfWork(const Action& action) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Probe(const AskBroker& ask);
  void SweepPins();
  absl::StatusOr<Released> ReleaseNow(const Release& what);
  // Those here that the pattern fits.
  std::set<std::string> Fitting(const std::string& tenant, const std::string& pattern) const;

  // One for each action: what is short is done at once, the rest is left in `due`.
  void Start(AskBroker& ask, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(GiveUpFetch& give_up, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(HurryFetch& hurry, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(OfferGraph& offer, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(ArmTimer& arm, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(CancelTimer& cancel, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(AnswerFromStore& answer, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The others are work: Work(action, no room) is run by a worker, or here when there is none.
  template <typename Action>
  void Start(Action& action, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // agreement_work.cc: what became of it. With `busy`, that it was not done.
  Event Work(const LoadScope& load, const absl::Status& busy);
  Event Work(const LoadPinAgain& load, const absl::Status& busy);
  Event Work(const LoadPinnedPlan& load, const absl::Status& busy);
  Event Work(const StoreUnplanned& store, const absl::Status& busy);
  Event Work(const StoreAgreed& store, const absl::Status& busy);
  Event Work(const WeighPlans& weigh, const absl::Status& busy);
  Event Work(const CompareGraphs& compare, const absl::Status& busy);
  Event Work(const DecodeGraph& decode, const absl::Status& busy);
  Answer PinnedAnswer(const AnswerFromStore& answer);
  absl::StatusOr<PlanReplyPtr> ReadPinnedPlan(const Pin& pin);
  absl::StatusOr<StandingPin> WriteAgreed(const StoreAgreed& store,
                                          std::optional<JobMemory>& elsewhere);
  // REQUIRES, of this and of WriteMemory: the tenant's storing_.
  absl::StatusOr<Agreed> WriteGeneration(const StoreAgreed& store);
  // Writes that the generation has no plan, if planning is off by now. What stands then, or empty:
  // there is nothing in the way of a plan.
  absl::StatusOr<std::optional<JobMemory>> WriteUnplanned(const JobName& name,
                                                          const JobMemory& memory);
  // What stands instead, if another server was first.
  absl::StatusOr<std::optional<JobMemory>> WriteMemory(const StoreUnplanned& store);
  // JobTable's.
  absl::StatusOr<JobMemory> MemoryOf(const JobName& name, uint64_t generation, ScopeId scope = 0);

  const Parts parts_;
  const std::unique_ptr<const HereNow> around_;
  // By tenant, over what is written for one event: before mutex_, workers only.
  Stripes storing_;
  mutable absl::Mutex mutex_;
  JobTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Waiting> callers_ ABSL_GUARDED_BY(mutex_);  // to be answered
  absl::flat_hash_map<uint64_t, PlanBroker::CallId> asked_ ABSL_GUARDED_BY(mutex_);  // by fetch
  absl::flat_hash_map<uint64_t, Timers::Id> timers_ ABSL_GUARDED_BY(mutex_);
  WorkerPool answers_;  // never behind the store
  WorkerPool workers_;  // last two: what they run uses the rest
};

}  // namespace bucketd
