// The stage of a flight in which the store is asked, before anybody is asked for a graph.
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/plans/plan_broker.h"

namespace bucketd {

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
  const WorkFor names(request->call);
  const absl::StatusOr<PlanReplyPtr> found = parts_.stored->Find(*request);
  const bool hit = found.ok() && *found != nullptr;
  if (hit) parts_.cache.Put(request->key, *found);
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    if (hit) {
      FinishFlight(request->key, found, answers, PlanOutcome::kStoreHit);
    } else {
      NotStored(request->key, found.status(), answers);
    }
  }
  Send(std::move(answers));
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
    Remove(call, cached_only ? none : MakeError(Reason::kDraining, "the server is shutting down"),
           answers);  // the last one takes the flight
  }
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
