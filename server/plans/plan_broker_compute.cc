// A flight's graph is here: it waits for a slot, is computed, and answers.
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/base/cancellation.h"
#include "passes/base/digest.h"
#include "passes/base/status_macros.h"
#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/cluster/leases.h"
#include "server/plans/plan_broker.h"
#include "server/store/crash_point.h"

namespace bucketd {
WorkShare PlanBroker::WorkShareOf(const PlanRequest& request) const {
  WorkShare share{ShareOf(request)};
  const int64_t weight = parts_.quotas.WeightOf(request.tenant);
  (request.asker.tenant_is_known ? share.outer_weight : share.inner_weight) = weight;
  return share;
}

// What is there needs no computation, so that a quota never refuses a hit.
absl::Status PlanBroker::TakeComputation(Flight& flight) {
  if (flight.computation.holds()) return absl::OkStatus();
  ASSIGN_OR_RETURN(flight.computation,
                   parts_.quotas.Take(Quota::kComputations, flight.request->tenant));
  return absl::OkStatus();
}

void PlanBroker::StartCompute(Flight& flight, GraphPtr graph, Answers& answers) {
  const absl::Status may = TakeComputation(flight);
  if (!may.ok()) {
    const std::string key = flight.request->key;
    FinishFlight(key, may, answers);
    return;
  }
  flight.stage = Stage::kQueued;
  flight.work = ++last_id_;
  key_of_work_.emplace(flight.work, flight.request->key);
  const std::shared_ptr<const PlanRequest> request = flight.request;
  const int64_t cost_ms = EstimatedMillis(*graph, request->options);
  const ComputeQueue::Taken submitted = parts_.compute_queue.Submit(
      {flight.work, WorkShareOf(*request), cost_ms,
       [this, request, graph = std::move(graph)](const std::atomic<bool>& cancelled) {
         Compute(request, graph, cancelled);
       }});
  const auto overloaded = [this](absl::string_view why) {
    return MakeError(Reason::kOverloaded, why, {.limit = parts_.options.compute_queue});
  };
  if (!submitted.taken) {
    FinishFlight(request->key, overloaded("all compute slots and the queue before them are full"),
                 answers);
    return;
  }
  parts_.metrics.compute_queued.Increment();
  if (submitted.displaced == 0) return;
  parts_.metrics.compute_queued.Decrement();
  parts_.metrics.displaced_computations.Increment();
  const std::string displaced = key_of_work_.at(submitted.displaced);
  FinishFlight(
      displaced,
      overloaded("the queue for compute slots is full, most of it yours: another's gets the place"),
      answers);
}

void PlanBroker::Compute(const std::shared_ptr<const PlanRequest>& request, const GraphPtr& graph,
                         const std::atomic<bool>& cancelled) {
  const WorkFor names(request->asker.call);
  bool leased = false;
  {
    const absl::MutexLock lock(&mutex_);
    Flight& flight = *flights_.find(request->key)->second;
    flight.stage = Stage::kComputing;
    leased = flight.leased;
  }
  parts_.metrics.compute_queued.Decrement();
  parts_.metrics.compute_running.Increment();
  absl::StatusOr<PlanReplyPtr> reply = absl::CancelledError("");
  {
    const CancellationScope scope(cancelled);
    reply = RunPlanFunction(*request, *graph);
  }
  parts_.metrics.compute_running.Decrement();
  const bool given_back = reply.ok() && KeepPlan(*request, *reply, leased);
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    Flight& flight = *flights_.find(request->key)->second;
    if (given_back) flight.leased = false;
    if (absl::IsCancelled(reply.status()) && !flight.callers.empty()) {
      key_of_work_.erase(flight.work);  // they came when it had been given up: once more
      StartCompute(flight, graph, answers);
    } else {
      FinishFlight(request->key, reply, answers);
    }
  }
  Send(std::move(answers));
}

absl::StatusOr<PlanReplyPtr> PlanBroker::RunPlanFunction(const PlanRequest& request,
                                                         const Graph& graph) {
  const SteadyTime start = std::chrono::steady_clock::now();
  absl::StatusOr<std::string> bytes = parts_.plan_function(graph, request);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  parts_.metrics.compute_seconds.Observe(seconds);
  std::vector<LogField> about = {{"graph", ToHex(request.digest)},
                                 {"plan", ToHex(Sha256(request.key))},
                                 {"mode", request.options.mode},
                                 {"nodes", absl::StrCat(graph.size()), true},
                                 {"seconds", absl::StrFormat("%.4f", seconds), true}};
  if (absl::IsCancelled(bytes.status())) {
    parts_.metrics.computations_cancelled.Increment();
    return bytes.status();
  }
  if (!bytes.ok()) {
    parts_.metrics.computations_failed.Increment();
    const bool bug = bytes.status().code() == absl::StatusCode::kInternal;
    about.push_back({"reason", ReasonOf(bytes.status())});
    about.push_back({"error", std::string(bytes.status().message())});
    LogLine(bug ? spdlog::level::err : spdlog::level::debug, "plan failed", about);
    return bytes.status();
  }
  parts_.metrics.computations_ok.Increment();
  about.push_back({"bytes", absl::StrCat(bytes->size()), true});
  LogLine(spdlog::level::debug, "plan computed", about);
  return EncodePlanReply(*std::move(bytes), request.key);
}

// Before anybody has it, in the cache too: whoever was answered finds it after a crash.
bool PlanBroker::KeepPlan(const PlanRequest& request, const PlanReplyPtr& reply, bool leased) {
  std::optional<Record> lease;
  if (leased) lease = parts_.leases->RecordOf(PlanLease(request.key));
  CrashPoint("plan: to be saved");
  const bool saved =
      parts_.stored != nullptr && parts_.stored->Save(request, PlanBytesOf(*reply), lease);
  CrashPoint("plan: saved");
  if (parts_.leases != nullptr) LogKept(request, leased, saved);
  parts_.cache.Put(request.key, reply);
  const bool given_back = saved && lease.has_value();
  if (given_back) parts_.leases->GaveBack(PlanLease(request.key));
  return given_back;
}

// By which right it was computed: of all replicas one has the lease of a plan until it is saved,
// and so nobody else makes it (tests/faults/computations.py).
void PlanBroker::LogKept(const PlanRequest& request, bool leased, bool saved) {
  const LeaseName name = PlanLease(request.key);
  const char* lease = !leased ? "none" : parts_.leases->Holds(name) ? "held" : "lost";
  LogLine(spdlog::level::debug, "plan kept",
          {{"plan", name.key}, {"lease", lease}, {"saved", saved ? "true" : "false", true}});
}

void PlanBroker::FinishFlight(const std::string& key, const absl::StatusOr<PlanReplyPtr>& reply,
                              Answers& answers, PlanOutcome first) {
  const std::unique_ptr<Flight> flight = TakeFlight(key);
  flight->stage = Stage::kAnswered;
  const std::set<CallId> callers = std::move(flight->callers);
  for (const CallId call : callers) {
    if (!reply.ok()) {
      Remove(call, reply.status(), answers);
      continue;
    }
    const PlanOutcome others = first == PlanOutcome::kComputed ? PlanOutcome::kJoined : first;
    const PlanOutcome outcome = call == flight->first_caller ? first : others;
    Remove(call, PlanAnswer{outcome, *reply, 0}, answers);
  }
}

}  // namespace bucketd
