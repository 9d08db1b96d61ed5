// Brings callers, graphs and computations together: at most one computation per plan key, at most
// one caller asked for a graph at a time, everybody else held until there is an answer.
//
// States of a key that is not in the cache ("flight"): the store is asked, if there is one; it
// waits for its graph, then for a compute slot, then it is computed. Among replicas one computes a
// key: the others look into the store again and again. A flight belongs to nobody:
// callers come, leave and run out of time. Without callers it ends, except that what is being
// computed goes on until something else needs its slot. Failures are answered to those who wait and
// forgotten.
//
// States of a graph that somebody wants ("graph wait"): leased to one caller who was asked to
// upload, or arriving (uploads, inline graphs being decoded). When neither is true any more the
// caller who has waited longest is asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "server/base/metrics.h"
#include "server/base/shares.h"
#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/cluster/leases.h"
#include "server/config/options.h"
#include "server/graphs/graph_intake.h"
#include "server/graphs/graph_store.h"
#include "server/plans/compute_queue.h"
#include "server/plans/plan_answer.h"
#include "server/plans/plan_cache.h"
#include "server/plans/plan_function.h"
#include "server/plans/plan_request.h"
#include "server/plans/stored_plans.h"
#include "server/tenants/quotas.h"

namespace bucketd {

class PlanBroker {
 public:
  using Answer = absl::StatusOr<PlanAnswer>;
  using Done = std::function<void(Answer)>;
  using CallId = uint64_t;    // 0: already answered
  using UploadId = uint64_t;  // never 0

  struct Parts {  // all outlive the broker
    PlanCache& cache;
    GraphStore& graphs;
    GraphIntake& intake;
    ComputeQueue& compute_queue;
    WorkerPool& intake_pool;
    Timers& timers;
    ServerMetrics& metrics;
    const ServerOptions& options;
    Quotas& quotas;
    PlanFunction plan_function;     // thread-safe
    StoredPlans* stored = nullptr;  // null: plans are in memory alone
    Leases* leases = nullptr;       // null: this server is no replica; else it has a store
  };

  explicit PlanBroker(const Parts& parts) : parts_(parts) {}

  // Calls `done` exactly once, here or on another thread, without locks held. Never blocks. Shortly
  // before `deadline` the answer is DEADLINE with what was waited for.
  CallId GetPlan(std::shared_ptr<PlanRequest> request, SteadyTime deadline, Done done);
  // Drops this caller alone, who is answered CANCELLED. No-op if it has been answered.
  void Cancel(CallId call);
  // Answers this caller as if its deadline had come.
  void DeadlineReached(CallId call);

  // While an upload is under way nobody else is asked for this graph.
  UploadId BeginUpload(const std::string& graph_key);
  // However it ended. If the graph did not come, the next caller is asked for it.
  void EndUpload(const std::string& graph_key, UploadId upload);
  // Stores the graph and starts what waits for it.
  void GraphArrived(const std::string& graph_key, GraphPtr graph);

  // From here on nobody is asked for a graph: those who wait for one that is not arriving are
  // answered DRAINING. Computations and arriving graphs go on.
  void BeginDrain();

 private:
  enum class Stage { kAsksStore, kNeedsGraph, kQueued, kComputing, kAnswered };
  struct Flight {
    std::shared_ptr<const PlanRequest> request;
    Stage stage = Stage::kNeedsGraph;
    CallId first_caller = 0;
    std::set<CallId> callers;
    ComputeQueue::Id work = 0;  // from kQueued on
    Quotas::Held computation;   // the same
    bool leased = false;        // by this replica: the others wait for what it stores
    bool elsewhere = false;     // another one has the lease
    // While the store is asked: the graph that rode along with one of the calls, and that call.
    std::shared_ptr<const InlineGraph> graph;
    CallId graph_caller = 0;
  };
  struct Caller {
    Flight* flight = nullptr;
    bool cached_only = false;  // and so only until the store has answered
    Shares::Path share;        // ShareOf, graph
    SteadyTime since;
    Timers::Id deadline_timer = 0;
    Done done;
  };
  struct GraphWait {
    uint64_t lease = 0;  // 0: nobody holds it
    Timers::Id lease_timer = 0;
    std::set<UploadId> arriving;
    UploadId inline_arriving = 0;  // the one of `arriving` that is inline; more would be no faster
    std::set<CallId> callers;      // the oldest first
  };
  using Answers = std::vector<std::pair<Done, Answer>>;

  // Of the following, those that take Answers leave calling to their caller.
  static void Send(Answers answers);
  CallId Admit(std::shared_ptr<PlanRequest> request, SteadyTime deadline, Done done,
               Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  GraphWait& WaitOf(const std::string& graph_key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Flight& FlightOf(const std::shared_ptr<PlanRequest>& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CallId AddCaller(Flight& flight, const PlanRequest& request, SteadyTime deadline, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<Flight> TakeFlight(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Without callers now.
  void Abandon(Flight& flight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoomFor(const PlanRequest& request, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartInlineDecode(const PlanRequest& request, std::shared_ptr<const InlineGraph> graph,
                         CallId call, Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DecodeInline(const std::string& graph_key, const Digest& digest, const InlineGraph& graph,
                    CallId call, UploadId upload);
  CallId AskStore(const std::shared_ptr<PlanRequest>& request,
                  std::shared_ptr<const InlineGraph> graph, bool cached_only, SteadyTime deadline,
                  Done done, Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadStore(const std::shared_ptr<const PlanRequest>& request);
  void NotStored(const std::string& key, const absl::Status& read, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Callers who do not wait for more than a look into the store, and those who may not any more.
  std::vector<CallId> AnswerLookers(Flight& flight, const absl::Status& read, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the key's lease where `found` is nothing and more than a look is wanted; then it may have
  // been found. Blocks on the store.
  enum class Claim { kNone, kMine, kElsewhere };
  Claim ClaimPlan(const PlanRequest& request, absl::StatusOr<PlanReplyPtr>& found);
  void WaitForOther(const std::shared_ptr<const PlanRequest>& request, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAgain(const std::shared_ptr<const PlanRequest>& request);
  WorkShare WorkShareOf(const PlanRequest& request) const;
  absl::Status TakeComputation(Flight& flight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartCompute(Flight& flight, GraphPtr graph, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Compute(const std::shared_ptr<const PlanRequest>& request, const GraphPtr& graph,
               const std::atomic<bool>& cancelled);
  absl::StatusOr<PlanReplyPtr> RunPlanFunction(const PlanRequest& request, const Graph& graph);
  // Saves the plan, if it can be saved, and has it in memory from then on. Whether its lease has
  // been given back with that.
  bool KeepPlan(const PlanRequest& request, const PlanReplyPtr& reply, bool leased);
  void LogKept(const PlanRequest& request, bool leased, bool saved);
  // `first`: what it was for the caller who started it.
  void FinishFlight(const std::string& key, const absl::StatusOr<PlanReplyPtr>& reply,
                    Answers& answers, PlanOutcome first = PlanOutcome::kComputed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drain(const std::string& graph_key, Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(CallId call, Answer answer, Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t GrantLease(const std::string& graph_key, GraphWait& wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaseExpired(const std::string& graph_key, uint64_t lease);
  UploadId BeginArrival(GraphWait& wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndArrival(const std::string& graph_key, UploadId upload, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AskNext(const std::string& graph_key, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DeadlineError(const Caller& caller) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Parts parts_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<Flight>> flights_
      ABSL_GUARDED_BY(mutex_);  // by plan key
  absl::flat_hash_map<std::string, std::unique_ptr<GraphWait>> graph_waits_
      ABSL_GUARDED_BY(mutex_);  // by graph key
  absl::flat_hash_map<CallId, Caller> callers_ ABSL_GUARDED_BY(mutex_);
  Shares shares_ ABSL_GUARDED_BY(mutex_);  // of callers_
  absl::flat_hash_map<ComputeQueue::Id, std::string> key_of_work_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> leases_ ABSL_GUARDED_BY(mutex_);  // graph keys, the oldest first
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bucketd
