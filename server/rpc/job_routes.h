// Calls of ranks, wherever the job that they name is: one replica has it (cluster/leases.h), where
// all ranks of a scope meet (jobs/agreement.h); the others forward to it what they are asked, one
// hop and no more, and answer with what comes back. Plans come back by reference, and their bytes
// from here or from the store.
//
// A call belongs to whoever it came to. Where its job has moved (the replica that had it died,
// drains, or does not know that others have ended it) it is presented anew to the one that has it
// now, within its caller's deadline; so ranks are present once, and where they are answered all of
// them are. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "passes/base/digest.h"
#include "proto/peer.pb.h"
#include "server/base/shares.h"
#include "server/base/timers.h"
#include "server/base/worker_pool.h"
#include "server/cluster/cluster_metrics.h"
#include "server/cluster/leases.h"
#include "server/cluster/membership.h"
#include "server/graphs/graph_store.h"
#include "server/jobs/machine/job_call.h"
#include "server/plans/plan_answer.h"
#include "server/plans/plan_cache.h"
#include "server/plans/plan_request.h"
#include "server/plans/stored_plans.h"
#include "server/rpc/peer_calls.h"
#include "server/rpc/unreached.h"

namespace bucketd {

// A GetPlan call that names a job.
struct RanksCall {
  std::shared_ptr<const std::string> request;  // serialised, its tenant filled in
  std::string tenant, job, scope;
  Digest graph{};         // that the request names
  std::string graph_key;  // of it
  Asker asker;
  SteadyTime deadline;
  std::shared_ptr<const ScopeRecords> records;  // read behind its lease; null: they are to be read
};

class JobRoutes {
 public:
  using Answer = absl::StatusOr<PlanAnswer>;
  using Done = std::function<void(Answer)>;
  // Empty: this replica does not have the job; the lease says who does, where that is known.
  using Here = std::function<void(std::optional<Answer>, const std::optional<ReplicaId>& holder)>;
  using CallId = uint64_t;

  struct Parts {  // all outlive this
    Leases& leases;
    Membership& members;
    ClusterMetrics& metrics;
    PeerCalls& peers;
    Timers& timers;
    WorkerPool& pool;     // waits for the store
    WorkerPool& uploads;  // to other replicas
    PlanCache& cache;
    StoredPlans& stored;
    GraphStore& graphs;
    // This server's agreement; `done` exactly once.
    std::function<uint64_t(const RanksCall& call, Done done)> ask_here;
    std::function<void(uint64_t call)> cancel_here;
    // That wait, here or there. Beyond, one of whoever has most is told OVERLOADED (base/shares.h).
    int64_t most_calls = 0;
  };
  explicit JobRoutes(Parts parts) : parts_(std::move(parts)) {}

  // Calls `done` exactly once, here or on another thread, without locks held. Never blocks. 0: it
  // has been answered.
  CallId GetPlan(RanksCall call, Done done);
  // The same for another replica, which has the call: answered here or not at all.
  CallId Serve(RanksCall call, Here done);
  // Drops this call, which is answered CANCELLED. No-op if it has been answered.
  void Cancel(CallId call);

  // Looks whether jobs have moved. After each Membership::Beat().
  void Look();
  // Jobs are somebody else's from here on: whoever waits here is answered by the agreement's end.
  void BeginDrain();
  // Whom calls that had to go there could not be sent to, lately; "": nobody. For people.
  std::string Trouble() const { return unreached_.InWords(std::chrono::steady_clock::now()); }

 private:
  // One stay of a call somewhere; what comes of an earlier one is not heard any more.
  using Leg = uint64_t;
  enum class Where { kNowhere, kHere, kThere };
  struct Call {
    RanksCall asks;
    LeaseName lease;
    Shares::Path share;
    bool has_place = false;
    Done done;  // or
    Here here;
    Timers::Id deadline_timer = 0;
    Leg leg = 0;
    Where where = Where::kNowhere;
    bool has_lease = true;  // here: else the store could not say whose the job is
    uint64_t id_here = 0;
    ReplicaId owner;  // there
    std::shared_ptr<PeerCalls::Call> there;
    std::optional<ReplicaId> hint;  // who has it, as somebody said who does not
    std::string why;                // it is nowhere
    std::string not_known;          // why the last look did not tell whose the job is
    int moves = 0;
    int graphs_brought = 0;
    bool with_plan = false;
    bool other_was_asked = false;  // when the store did not say whose the job is
  };
  // What is to be stopped, without the lock.
  struct Stay {
    uint64_t id_here = 0;
    std::shared_ptr<PeerCalls::Call> there;
  };
  using Waiting = std::vector<std::pair<CallId, Leg>>;

  CallId Take(RanksCall asks, Done done, Here here);
  // Whose place that call gets: 0: there was one. Itself: it has none.
  CallId TakePlace(CallId id, Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeavePlace(CallId id, Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wherever it is, with this answer.
  void End(CallId id, const absl::Status& why);
  // Null: the call has been answered, or moved on.
  Call* Find(CallId id, Leg leg) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For good, to be answered. Empty: as above; without `leg`, wherever it is.
  std::optional<Call> TakeOut(CallId id, std::optional<Leg> leg);
  static Stay EndStay(Call& call);
  void Leave(const Stay& stay);
  static void Tell(const Call& call, const Answer& answer);
  void Finish(CallId id, Leg leg, const Answer& answer);
  // Of a call that is served for another replica.
  void FinishMoved(CallId id, Leg leg, const std::optional<ReplicaId>& holder);
  void AtDeadline(CallId id);

  // Where to.
  void Start(CallId id, Leg leg);
  // What is kept of that call's scope is read with the lease.
  void LookUpNow(const LeaseName& name, CallId first, Leg leg);
  using Records = std::shared_ptr<const ScopeRecords>;
  void TellAll(const LeaseName& name, const absl::StatusOr<Lease>& lease, const Records& records);
  void Found(CallId id, Leg leg, const absl::StatusOr<Lease>& lease, const Records& records);
  void Remember(const LeaseName& name, const ReplicaId& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A while later; `was` does not have the job.
  void Again(CallId id, Leg leg, const ReplicaId& was, const std::optional<ReplicaId>& hint,
             absl::string_view why);
  void StayHere(CallId id, Leg leg, bool has_lease, const Records& records = nullptr);

  // job_routes_forward.cc: there.
  void StayThere(CallId id, Leg leg, const ReplicaId& owner);
  void BringGraph(CallId id, Leg leg);
  void Forward(CallId id, Leg leg);
  void Came(CallId id, Leg leg, const absl::StatusOr<v1::ForwardReply>& reply);
  void TooLarge(CallId id, Leg leg, const ReplicaId& owner, const absl::Status& why);
  void Broken(CallId id, Leg leg, const ReplicaId& owner, absl::string_view why);
  void UseMoved(CallId id, Leg leg, const ReplicaId& owner, const v1::Moved& moved);
  void UseError(CallId id, Leg leg, const ReplicaId& owner, const absl::Status& error);
  void GraphRequired(CallId id, Leg leg, const ReplicaId& owner, int64_t lease_ms);
  void UsePlan(CallId id, Leg leg, const ReplicaId& owner, const v1::PlanReference& plan);
  void ReadPlan(const std::string& key, const Digest& graph);
  void TellPlan(const std::string& key, const PlanReplyPtr& reply);
  void AskWithPlan(CallId id, Leg leg);
  void AnswerPlan(CallId id, Leg leg, v1::PlanSource source, const PlanReplyPtr& reply);

  const Parts parts_;
  Unreached unreached_;
  mutable absl::Mutex mutex_;
  CallId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::node_hash_map<CallId, Call> calls_ ABSL_GUARDED_BY(mutex_);
  Shares places_ ABSL_GUARDED_BY(mutex_);  // of those
  int64_t placed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<LeaseName, Waiting> looking_ ABSL_GUARDED_BY(mutex_);
  // Who had a job when it was asked for last. A guess: who does not have it says so.
  std::map<LeaseName, ReplicaId> known_ ABSL_GUARDED_BY(mutex_);
  // Graphs that a caller of this replica was asked for in the name of another one.
  std::map<std::string, ReplicaId> owed_ ABSL_GUARDED_BY(mutex_);
  struct PlanWaits {
    CallId id = 0;
    Leg leg = 0;
    Digest sha256{};
    v1::PlanSource source{};
  };
  std::map<std::string, std::vector<PlanWaits>> reading_ ABSL_GUARDED_BY(mutex_);  // by plan key
};

}  // namespace bucketd
