// The stage of a flight in which the store is asked, before anybody is asked for a graph.
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/plans/plan_broker.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

// For what another replica computes.
constexpr std::chrono::milliseconds kLookAgain{100};

}  // namespace

PlanBroker::CallId PlanBroker::AskStore(const std::shared_ptr<PlanRequest>& request,
                                        std::shared_ptr<const InlineGraph> graph, bool cached_only,
                                        SteadyTime deadline, Done done, Answers& answers) {
  const bool is_new = !flights_.contains(request->key);
  Flight& flight = FlightOf(request);
  const CallId call = AddCaller(flight, *request, deadline, std::move(done));
  callers_[call].cached_only = cached_only;
  if (graph != nullptr && flight.graph == nullptr) {
    flight.graph = std::move(graph);
    flight.graph_caller = call;
  }
  if (!is_new) return call;
  flight.stage = Stage::kAsksStore;
  if (!parts_.stored->TrySubmit([this, request] { ReadStore(request); })) {
    NotStored(request->key, absl::UnavailableError("too many plans wait to be read"), answers);
  }
  return callers_.contains(call) ? call : 0;
}

void PlanBroker::ReadStore(const std::shared_ptr<const PlanRequest>& request) {
  const WorkFor names(request->asker.call);
  absl::StatusOr<PlanReplyPtr> found = parts_.stored->Find(request->key, request->digest);
  const Claim claim = ClaimPlan(*request, found);
  const bool hit = found.ok() && *found != nullptr;
  if (hit) parts_.cache.Put(request->key, *found);
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    Flight& flight = *flights_.find(request->key)->second;
    flight.leased = claim == Claim::kMine;
    flight.elsewhere = claim == Claim::kElsewhere;
    if (hit) {
      FinishFlight(request->key, found, answers, PlanOutcome::kStoreHit);
    } else if (claim == Claim::kElsewhere) {
      WaitForOther(request, answers);
    } else {
      NotStored(request->key, found.status(), answers);
    }
  }
  Send(std::move(answers));
}

PlanBroker::Claim PlanBroker::ClaimPlan(const PlanRequest& request,
                                        absl::StatusOr<PlanReplyPtr>& found) {
  if (parts_.leases == nullptr || !found.ok() || *found != nullptr) return Claim::kNone;
  bool is_others = false;
  {
    const absl::MutexLock lock(&mutex_);
    const Flight& flight = *flights_.find(request.key)->second;
    const std::set<CallId>& callers = flight.callers;
    is_others = flight.elsewhere;
    const bool is_wanted = std::any_of(callers.begin(), callers.end(),
                                       [&](CallId call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                         return !callers_.find(call)->second.cached_only;
                                       });
    if (!is_wanted || draining_) return Claim::kNone;
  }
  // Looked for once more behind the lease: whoever had that before may have stored the plan.
  ReadBehind behind;
  behind.plan_key = request.key;
  const absl::StatusOr<Lease> lease =
      parts_.leases->Take(PlanLease(request.key), &behind, is_others);
  if (!lease.ok()) return Claim::kNone;  // then it may be computed twice
  if (lease->mine) CrashPoint("plan: lease taken");
  if (behind.plan.has_value()) {
    found = parts_.stored->Read(request.key, request.digest, *std::move(behind.plan));
  } else if (lease->mine) {
    found = parts_.stored->Find(request.key, request.digest);
  }
  return lease->mine ? Claim::kMine : Claim::kElsewhere;
}

void PlanBroker::WaitForOther(const std::shared_ptr<const PlanRequest>& request, Answers& answers) {
  AnswerLookers(*flights_.find(request->key)->second, absl::OkStatus(), answers);
  parts_.timers.Schedule(Clock::now() + kLookAgain, [this, request] { LookAgain(request); });
}

void PlanBroker::LookAgain(const std::shared_ptr<const PlanRequest>& request) {
  {
    const absl::MutexLock lock(&mutex_);
    if (flights_.find(request->key)->second->callers.empty()) {
      TakeFlight(request->key);
      return;
    }
  }
  if (parts_.stored->TrySubmit([this, request] { ReadStore(request); })) return;
  parts_.timers.Schedule(Clock::now() + kLookAgain, [this, request] { LookAgain(request); });
}

std::vector<PlanBroker::CallId> PlanBroker::AnswerLookers(Flight& flight, const absl::Status& read,
                                                          Answers& answers) {
  const absl::Status none =
      read.ok() ? MakeError(Reason::kPlanNotCached, "there is no plan for this key in the cache")
                : MakeError(Reason::kStoreUnavailable,
                            absl::StrCat("whether there is a plan for this key is not known: the "
                                         "store cannot be read: ",
                                         read.message()));
  const std::set<CallId> callers = flight.callers;
  std::vector<CallId> going_on;
  for (const CallId call : callers) {
    const bool cached_only = callers_[call].cached_only;
    if (!cached_only && !draining_) {
      going_on.push_back(call);
      continue;
    }
    Remove(call, cached_only ? none : DrainingError(), answers);
  }
  return going_on;
}

// The flight goes on as if there were no store; `read` says whether there is no plan in it or
// whether that is not known.
void PlanBroker::NotStored(const std::string& key, const absl::Status& read, Answers& answers) {
  Flight& flight = *flights_.find(key)->second;
  const std::shared_ptr<const PlanRequest> request = flight.request;
  const std::shared_ptr<const InlineGraph> graph_data = std::move(flight.graph);
  flight.stage = Stage::kNeedsGraph;
  if (flight.callers.empty()) {
    TakeFlight(key);
    return;
  }
  // The last one who does not go on takes the flight.
  const std::vector<CallId> going_on = AnswerLookers(flight, read, answers);
  if (going_on.empty()) return;
  if (GraphPtr graph = parts_.graphs.Get(request->graph_key)) {
    StartCompute(flight, std::move(graph), answers);
    return;
  }
  GraphWait& wait = WaitOf(request->graph_key);
  wait.callers.insert(going_on.begin(), going_on.end());
  const bool has_sender = graph_data != nullptr && callers_.contains(flight.graph_caller);
  if (has_sender && wait.inline_arriving == 0) {
    StartInlineDecode(*request, graph_data, flight.graph_caller, answers);
  } else if (wait.lease == 0 && wait.arriving.empty()) {
    AskNext(request->graph_key, answers);
  }
}

}  // namespace bucketd
