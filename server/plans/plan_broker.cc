#include "server/plans/plan_broker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "server/base/errors.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

// Of a tenant's or host's callers those of one graph are one part.
Shares::Path CallerShareOf(const PlanRequest& request) {
  Shares::Path share = ShareOf(request);
  share.push_back(request.graph_key);
  return share;
}

double SecondsSince(SteadyTime since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

}  // namespace

void PlanBroker::Send(Answers answers) {
  for (auto& [done, answer] : answers) done(std::move(answer));
}

PlanBroker::CallId PlanBroker::GetPlan(std::shared_ptr<PlanRequest> request, SteadyTime deadline,
                                       Done done) {
  if (PlanReplyPtr reply = parts_.cache.Get(request->key)) {
    done(PlanAnswer{PlanOutcome::kHit, std::move(reply), 0});
    return 0;
  }
  Answers answers;
  CallId call = 0;
  {
    const absl::MutexLock lock(&mutex_);
    call = Admit(std::move(request), deadline, std::move(done), answers);
  }
  Send(std::move(answers));
  return call;
}

PlanBroker::CallId PlanBroker::Admit(std::shared_ptr<PlanRequest> request, SteadyTime deadline,
                                     Done done, Answers& answers) {
  const auto answer = [&](Answer a) {
    answers.emplace_back(std::move(done), std::move(a));
    return CallId{0};
  };
  // Again, under the lock: a plan enters the cache before its flight ends, so whoever finds neither
  // is the first.
  if (PlanReplyPtr reply = parts_.cache.Get(request->key)) {
    return answer(PlanAnswer{PlanOutcome::kHit, std::move(reply), 0});
  }
  const bool ask_store = parts_.stored != nullptr;
  if (request->cached_only && !ask_store) {
    return answer(MakeError(Reason::kPlanNotCached, "there is no plan for this key in the cache"));
  }
  if (draining_) return answer(DrainingError());
  const absl::Status room = MakeRoomFor(*request, answers);
  if (!room.ok()) return answer(room);

  const std::shared_ptr<const InlineGraph> graph_data = std::move(request->graph);
  const auto flying = flights_.find(request->key);
  if (ask_store && (flying == flights_.end() || flying->second->stage == Stage::kAsksStore)) {
    return AskStore(request, graph_data, request->cached_only, deadline, std::move(done), answers);
  }
  if (request->cached_only) {  // the store had none when this flight began
    return answer(MakeError(Reason::kPlanNotCached, "there is no plan for this key in the cache"));
  }
  if (flying != flights_.end() && flying->second->stage != Stage::kNeedsGraph) {
    return AddCaller(*flying->second, *request, deadline, std::move(done));
  }
  if (GraphPtr graph = parts_.graphs.Get(request->graph_key)) {
    Flight& flight = FlightOf(request);
    const CallId call = AddCaller(flight, *request, deadline, std::move(done));
    StartCompute(flight, std::move(graph), answers);
    return call;
  }
  GraphWait& wait = WaitOf(request->graph_key);
  if (graph_data == nullptr && wait.lease == 0 && wait.arriving.empty()) {
    return answer(
        PlanAnswer{PlanOutcome::kGraphRequired, nullptr, GrantLease(request->graph_key, wait)});
  }
  const CallId call = AddCaller(FlightOf(request), *request, deadline, std::move(done));
  wait.callers.insert(call);
  if (graph_data != nullptr && wait.inline_arriving == 0) {
    StartInlineDecode(*request, graph_data, call, answers);
  }
  return call;
}

// Where all places are taken whoever has most gives way (ShareOf), and of his the graph that has
// most.
absl::Status PlanBroker::MakeRoomFor(const PlanRequest& request, Answers& answers) {
  const int32_t limit = parts_.options.max_waiting;
  const auto full = [limit](size_t held) { return static_cast<int64_t>(held) >= limit; };
  if (full(callers_.size())) {
    const CallId displaced = shares_.GivesWayTo(CallerShareOf(request));
    if (displaced == 0) {
      return MakeError(Reason::kOverloaded, "too many callers wait", {.limit = limit});
    }
    parts_.metrics.displaced_callers.Increment();
    Remove(displaced,
           MakeError(Reason::kOverloaded,
                     "too many callers wait, most of them yours: one of another "
                     "gets the place",
                     {.limit = limit}),
           answers);
  }
  // Whoever was asked may upload all the same, when the next one was asked, too.
  while (full(graph_waits_.size()) && !leases_.empty()) {
    const auto oldest = leases_.begin();
    const auto wait = graph_waits_.find(oldest->second);
    leases_.erase(oldest);
    if (!wait->second->callers.empty() || !wait->second->arriving.empty()) continue;
    parts_.timers.Cancel(wait->second->lease_timer);
    graph_waits_.erase(wait);
  }
  return absl::OkStatus();
}

PlanBroker::GraphWait& PlanBroker::WaitOf(const std::string& graph_key) {
  std::unique_ptr<GraphWait>& wait = graph_waits_[graph_key];
  if (wait == nullptr) wait = std::make_unique<GraphWait>();
  return *wait;
}

PlanBroker::Flight& PlanBroker::FlightOf(const std::shared_ptr<PlanRequest>& request) {
  std::unique_ptr<Flight>& flight = flights_[request->key];
  if (flight == nullptr) {
    flight = std::make_unique<Flight>();
    flight->request = request;
  }
  return *flight;
}

std::unique_ptr<PlanBroker::Flight> PlanBroker::TakeFlight(const std::string& key) {
  const auto found = flights_.find(key);
  std::unique_ptr<Flight> flight = std::move(found->second);
  flights_.erase(found);
  key_of_work_.erase(std::exchange(flight->work, 0));
  if (flight->leased) parts_.leases->ReleaseSoon(PlanLease(key));
  return flight;
}

PlanBroker::CallId PlanBroker::AddCaller(Flight& flight, const PlanRequest& request,
                                         SteadyTime deadline, Done done) {
  const CallId call = ++last_id_;
  if (flight.callers.empty() && flight.stage == Stage::kComputing) {
    parts_.compute_queue.SetWanted(flight.work, true);
  }
  if (flight.first_caller == 0) flight.first_caller = call;
  flight.callers.insert(call);
  Caller& caller = callers_[call];
  caller.flight = &flight;
  caller.since = Clock::now();
  caller.share = CallerShareOf(request);
  shares_.Add(caller.share, call);
  caller.done = std::move(done);
  caller.deadline_timer = parts_.timers.Schedule(AnswerBy(Clock::now(), deadline),
                                                 [this, call] { DeadlineReached(call); });
  parts_.metrics.waiting_callers.Increment();
  return call;
}

void PlanBroker::Remove(CallId call, Answer answer, Answers& answers) {
  const auto found = callers_.find(call);
  if (found == callers_.end()) return;
  Caller& caller = found->second;
  parts_.timers.Cancel(caller.deadline_timer);
  answers.emplace_back(std::move(caller.done), std::move(answer));
  Flight& flight = *caller.flight;
  shares_.Remove(caller.share, call);
  callers_.erase(found);
  parts_.metrics.waiting_callers.Decrement();

  flight.callers.erase(call);
  if (flight.stage == Stage::kNeedsGraph) {
    const auto wait = graph_waits_.find(flight.request->graph_key);
    if (wait != graph_waits_.end()) wait->second->callers.erase(call);
  }
  if (flight.callers.empty()) Abandon(flight);
}

void PlanBroker::Abandon(Flight& flight) {
  const std::string key = flight.request->key;
  if (flight.stage == Stage::kNeedsGraph) {
    TakeFlight(key);  // nobody would start it
  } else if (flight.work != 0 && parts_.compute_queue.Drop(flight.work)) {
    parts_.metrics.compute_queued.Decrement();
    parts_.metrics.computations_dropped.Increment();
    TakeFlight(key);
  } else if (flight.work != 0) {
    parts_.compute_queue.SetWanted(flight.work, false);
  }
}

void PlanBroker::Cancel(CallId call) {
  if (call == 0) return;
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    Remove(call, CallerGone(), answers);
  }
  Send(std::move(answers));
}

void PlanBroker::DeadlineReached(CallId call) {
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    const auto caller = callers_.find(call);
    if (caller == callers_.end()) return;
    const absl::Status error = DeadlineError(caller->second);
    Remove(call, error, answers);
  }
  Send(std::move(answers));
}

absl::Status PlanBroker::DeadlineError(const Caller& caller) const {
  const PlanRequest& request = *caller.flight->request;
  const std::string graph = absl::StrCat("graph ", ToHex(request.digest).substr(0, 12));
  std::string what;
  switch (caller.flight->stage) {
    case Stage::kAsksStore:
      what = caller.flight->elsewhere
                 ? absl::StrCat("the plan of ", graph, ", which another replica is to compute")
                 : absl::StrCat("the store, which is being asked for the plan of ", graph);
      break;
    case Stage::kNeedsGraph: {
      const auto wait = graph_waits_.find(request.graph_key);
      const bool arriving = wait != graph_waits_.end() && !wait->second->arriving.empty();
      what = arriving ? absl::StrCat(graph, " to arrive; its upload is under way")
                      : absl::StrCat("another caller, who was asked for it, to upload ", graph);
      break;
    }
    case Stage::kQueued:
      what = absl::StrCat("a free compute slot for ", graph);
      break;
    case Stage::kAnswered:  // has no callers
    case Stage::kComputing:
      what = absl::StrCat(
          "the plan of ", graph,
          ", which is being computed, and will be cached unless others need the slot: ask again");
      break;
  }
  return MakeError(Reason::kDeadline,
                   absl::StrFormat("the deadline came after %.3f s of waiting for %s",
                                   SecondsSince(caller.since), what));
}

void PlanBroker::StartInlineDecode(const PlanRequest& request,
                                   std::shared_ptr<const InlineGraph> graph, CallId call,
                                   Answers& answers) {
  GraphWait& wait = WaitOf(request.graph_key);
  const UploadId upload = BeginArrival(wait);
  wait.inline_arriving = upload;
  const bool submitted = parts_.intake_pool.TrySubmit(
      [this, key = request.graph_key, digest = request.digest, graph = std::move(graph), call,
       upload] { DecodeInline(key, digest, *graph, call, upload); });
  if (submitted) return;
  Remove(call, MakeError(Reason::kOverloaded, "too many graphs are being read"), answers);
  EndArrival(request.graph_key, upload, answers);
}

void PlanBroker::DecodeInline(const std::string& graph_key, const Digest& digest,
                              const InlineGraph& graph, CallId call, UploadId upload) {
  absl::StatusOr<GraphPtr> decoded = parts_.intake.ReadInline(graph, digest);
  if (decoded.ok()) GraphArrived(graph_key, *std::move(decoded));
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    // Its sender alone is to blame; the others wait for a better one.
    if (!decoded.ok()) Remove(call, decoded.status(), answers);
    EndArrival(graph_key, upload, answers);
  }
  Send(std::move(answers));
}

PlanBroker::UploadId PlanBroker::BeginUpload(const std::string& graph_key) {
  const absl::MutexLock lock(&mutex_);
  return BeginArrival(WaitOf(graph_key));
}

// Callers do not say who they are: whatever arrives counts as what the lease was granted for.
PlanBroker::UploadId PlanBroker::BeginArrival(GraphWait& wait) {
  parts_.timers.Cancel(wait.lease_timer);
  leases_.erase(std::exchange(wait.lease, 0));
  const UploadId upload = ++last_id_;
  wait.arriving.insert(upload);
  return upload;
}

void PlanBroker::EndUpload(const std::string& graph_key, UploadId upload) {
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    EndArrival(graph_key, upload, answers);
  }
  Send(std::move(answers));
}

void PlanBroker::EndArrival(const std::string& graph_key, UploadId upload, Answers& answers) {
  const auto found = graph_waits_.find(graph_key);
  // Once a graph has arrived its wait is gone; a later one is none of this upload's business.
  if (found == graph_waits_.end() || found->second->arriving.erase(upload) == 0) return;
  GraphWait& wait = *found->second;
  if (wait.inline_arriving == upload) wait.inline_arriving = 0;
  if (wait.lease == 0 && wait.arriving.empty()) AskNext(graph_key, answers);
}

void PlanBroker::GraphArrived(const std::string& graph_key, GraphPtr graph) {
  parts_.graphs.Put(graph_key, graph);
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = graph_waits_.find(graph_key);
    if (found == graph_waits_.end()) return;
    const std::unique_ptr<GraphWait> wait = std::move(found->second);
    graph_waits_.erase(found);
    leases_.erase(wait->lease);
    parts_.timers.Cancel(wait->lease_timer);
    for (const CallId call : wait->callers) {
      const auto caller = callers_.find(call);  // gone if its flight could not be queued
      if (caller == callers_.end()) continue;
      Flight& flight = *caller->second.flight;
      if (flight.stage == Stage::kNeedsGraph) StartCompute(flight, graph, answers);
    }
  }
  Send(std::move(answers));
}

int64_t PlanBroker::GrantLease(const std::string& graph_key, GraphWait& wait) {
  const uint64_t lease = ++last_id_;
  wait.lease = lease;
  leases_.emplace(lease, graph_key);
  wait.lease_timer =
      parts_.timers.Schedule(Clock::now() + parts_.options.upload_lease,
                             [this, graph_key, lease] { LeaseExpired(graph_key, lease); });
  parts_.metrics.leases_granted.Increment();
  return parts_.options.upload_lease.count();
}

void PlanBroker::LeaseExpired(const std::string& graph_key, uint64_t lease) {
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = graph_waits_.find(graph_key);
    if (found == graph_waits_.end() || found->second->lease != lease) return;
    leases_.erase(std::exchange(found->second->lease, 0));
    parts_.metrics.leases_expired.Increment();
    if (found->second->arriving.empty()) AskNext(graph_key, answers);
  }
  Send(std::move(answers));
}

void PlanBroker::AskNext(const std::string& graph_key, Answers& answers) {
  const auto found = graph_waits_.find(graph_key);
  GraphWait& wait = *found->second;
  if (wait.callers.empty()) {
    graph_waits_.erase(found);
  } else if (draining_) {
    Drain(graph_key, answers);
  } else {
    const CallId oldest = *wait.callers.begin();
    Remove(oldest, PlanAnswer{PlanOutcome::kGraphRequired, nullptr, GrantLease(graph_key, wait)},
           answers);
  }
}

void PlanBroker::Drain(const std::string& graph_key, Answers& answers) {
  const auto found = graph_waits_.find(graph_key);
  const std::unique_ptr<GraphWait> wait = std::move(found->second);
  graph_waits_.erase(found);
  leases_.erase(wait->lease);
  parts_.timers.Cancel(wait->lease_timer);
  for (const CallId call : wait->callers) Remove(call, DrainingError(), answers);
}

void PlanBroker::BeginDrain() {
  Answers answers;
  {
    const absl::MutexLock lock(&mutex_);
    draining_ = true;
    std::vector<std::string> hopeless;
    for (const auto& [key, wait] : graph_waits_) {
      if (wait->arriving.empty()) hopeless.push_back(key);
    }
    for (const std::string& key : hopeless) Drain(key, answers);
  }
  Send(std::move(answers));
}

}  // namespace bucketd
