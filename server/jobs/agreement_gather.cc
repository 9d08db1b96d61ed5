// Agreement: ranks that come, and the plan that is fetched meanwhile.
#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/costs/cost_catalog.h"
#include "server/jobs/agreement.h"
#include "server/jobs/job_signature.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

// Of how many signatures the text and the request are kept; the others are known by their hash.
constexpr size_t kKeptSignatures = 8;
// Of how many the plan is fetched before all ranks have come. Two graphs are enough to compare.
constexpr size_t kFetchedSignatures = 2;
constexpr std::chrono::milliseconds kRetry{200};
constexpr size_t kNamedAway = 8;

// The answer has to be there before the client's deadline is; to answer many takes longer.
SteadyTime AnswerBy(SteadyTime deadline, uint32_t ranks) {
  constexpr std::chrono::milliseconds kMargin{250};
  constexpr std::chrono::microseconds kMarginOfRank{100};
  const SteadyTime now = Clock::now();
  if (deadline <= now) return now;
  return deadline -
         std::min<Clock::duration>(kMargin + ranks * kMarginOfRank, (deadline - now) / 4);
}

// The graph itself is to blame, as it was sent; another sender may have a better one.
bool IsFaultOfGraph(absl::string_view reason) {
  constexpr std::array<Reason, 5> kFaults = {Reason::kDigestMismatch, Reason::kContentMismatch,
                                             Reason::kGraphMalformed, Reason::kGraphTooLarge,
                                             Reason::kCodecUnknown};
  return std::any_of(kFaults.begin(), kFaults.end(),
                     [&](Reason fault) { return reason == ReasonName(fault); });
}

}  // namespace

absl::Status Agreement::CheckRoom(const ScopeState& scope, const Arrival& arrival) const {
  const int64_t limit = parts_.options.max_waiting_ranks;
  const auto waiting = static_cast<int64_t>(calls_.size());
  if (waiting >= limit) {
    return MakeError(Reason::kOverloaded, "too many ranks wait for each other",
                     {.limit = limit, .actual = waiting, .node = {}});
  }
  // Each rank may change its mind once; signatures that nobody presents any more stay in the table.
  const size_t most = size_t{2} * scope.size + kKeptSignatures;
  if (scope.presented.size() < most || scope.by_signature.contains(arrival.signature_id)) {
    return absl::OkStatus();
  }
  return MakeError(Reason::kJobInvalid,
                   absl::StrCat("the ranks of scope ", scope.name, " have presented ", most,
                                " different graphs or options"),
                   {.limit = static_cast<int64_t>(most), .actual = -1, .node = {}});
}

Agreement::CallId Agreement::Wait(ScopeState& scope, Arrival& arrival, Actions& actions) {
  const absl::Status room = CheckRoom(scope, arrival);
  if (!room.ok()) {
    const RankList& away = scope.turned_away;
    for (const uint32_t rank : arrival.job.ranks) {
      if (away.size() < kNamedAway && std::count(away.begin(), away.end(), rank) == 0) {
        scope.turned_away.push_back(rank);
      }
    }
    actions.answers.emplace_back(std::move(arrival.done), room);
    return 0;
  }
  ReplaceEarlier(scope, arrival.job, actions);
  Presented& presented = PresentedBy(scope, arrival);
  const CallId id = ++last_id_;
  WaitingCall& call = calls_[id];
  call.scope = &scope;
  call.signature = presented.index;
  call.ranks = RankList(arrival.job.ranks.begin(), arrival.job.ranks.end());
  call.answer_by = AnswerBy(arrival.deadline, scope.size);
  call.done = std::move(arrival.done);
  for (const uint32_t rank : call.ranks) scope.live.emplace(rank, id);
  if (presented.calls.empty()) ++scope.live_signatures;
  presented.calls.insert(id);
  presented.live += static_cast<uint32_t>(call.ranks.size());
  scope.deadlines.emplace(call.answer_by, id);
  ++scope.job->waiting;
  parts_.metrics.waiting_ranks.Increment(static_cast<double>(call.ranks.size()));
  ArmDeadline(scope);

  KeepRequest(scope, presented, arrival, id, actions);
  if (scope.stage == ScopeStage::kGathering)
    Gather(scope, actions);
  else if (scope.stage == ScopeStage::kComparing)
    CompareStep(scope, actions);
  return id;
}

// A call that was cut off and repeated; its first half has not heard of that yet.
void Agreement::ReplaceEarlier(ScopeState& scope, const JobCall& job, Actions& actions) {
  for (const uint32_t rank : job.ranks) {
    const auto earlier = scope.live.find(rank);
    if (earlier == scope.live.end()) continue;
    Remove(earlier->second,
           MakeError(Reason::kJobInvalid,
                     absl::StrCat("rank ", rank, " called again for scope ", scope.name,
                                  " while this call was waiting: are there two of it?")),
           actions);
  }
}

Presented& Agreement::PresentedBy(ScopeState& scope, const Arrival& arrival) {
  const auto [at, is_new] =
      scope.by_signature.emplace(arrival.signature_id, scope.presented.size());
  if (is_new) {
    Presented& made = scope.presented.emplace_back();
    made.index = at->second;
    made.graph = arrival.request->digest;
    made.fresh = arrival.job.fresh;
  }
  return scope.presented[at->second];
}

void Agreement::KeepRequest(ScopeState& scope, Presented& presented, Arrival& arrival, CallId call,
                            Actions& actions) {
  const bool kept = presented.request != nullptr;
  const bool with_graph = arrival.request->graph != nullptr;
  if (kept && !with_graph) return;
  if (!kept) {
    if (presented.index >= kKeptSignatures && scope.live_signatures > 1) return;
    // The text stands in the request's key too.
    KeepBytes(scope, static_cast<int64_t>(2 * arrival.signature.size()));
    presented.text = std::move(arrival.signature);
  }
  if (with_graph) {
    CameWithGraph(scope, presented, arrival, call, actions);
  } else {
    presented.request = std::move(arrival.request);
  }
}

void Agreement::CameWithGraph(ScopeState& scope, Presented& presented, Arrival& arrival,
                              CallId call, Actions& actions) {
  if (scope.stage == ScopeStage::kComparing) {
    DecodeToCompare(scope, presented, std::move(arrival.request->graph), actions);
    if (presented.request == nullptr) presented.request = std::move(arrival.request);
    return;
  }
  // One is enough: ten thousand ranks may all send theirs.
  const bool wanted = !presented.result.has_value() && presented.inline_sender == 0;
  if (!wanted) return;
  CancelProbe(presented, actions);
  presented.request = std::move(arrival.request);
  presented.inline_sender = call;
}

void Agreement::Gather(ScopeState& scope, Actions& actions) {
  if (scope.live.size() < scope.size) {
    const size_t fetched = std::min(kFetchedSignatures, scope.presented.size());
    for (size_t i = 0; i < fetched; ++i) Fetch(scope, scope.presented[i], actions);
    return;
  }
  if (scope.live_signatures > 1) {
    StartComparing(scope, actions);
    return;
  }
  // The only one; the rank that completed the scope, like all others, presents it.
  Presented& agreed = scope.presented[calls_.find(scope.live.begin()->second)->second.signature];
  if (!agreed.result.has_value()) Fetch(scope, agreed, actions);
  if (!agreed.result.has_value()) {
    LimitReplan(scope, agreed);
  } else if (agreed.result->ok()) {
    StartStoring(scope, agreed, actions);
  } else {
    Fail(scope, agreed.result->status(), AgreementOutcome::kFailed, true, actions);
  }
}

void Agreement::Fetch(ScopeState& scope, Presented& presented, Actions& actions) {
  if (presented.result.has_value() || presented.probe != 0 || presented.retry_is_due ||
      presented.request == nullptr || presented.calls.empty()) {
    return;
  }
  if (scope.pin.has_value() && !presented.fresh &&
      SameSignature(scope.pin_signature, presented.text)) {
    presented.probe = ++last_id_;
    FetchPinned(scope, presented, actions);
    return;
  }
  const absl::Status fixed = UseFixedProfile(*scope.job, *presented.request);
  if (!fixed.ok() && absl::IsUnavailable(fixed)) {
    RetryLater(scope, presented, fixed);
  } else if (!fixed.ok()) {
    presented.result = fixed;
  } else {
    AskBroker(scope, presented, actions);
  }
}

void Agreement::AskBroker(const ScopeState& scope, Presented& presented, Actions& actions) {
  presented.probe = ++last_id_;
  actions.calls.push_back([this, id = scope.id, index = presented.index, probe = presented.probe,
                           request = presented.request] { Probe(id, index, probe, request); });
}

void Agreement::FetchPinned(const ScopeState& scope, const Presented& presented, Actions& actions) {
  const auto came = [this, id = scope.id, index = presented.index,
                     probe = presented.probe](const absl::StatusOr<PlanReplyPtr>& reply) {
    PinnedPlanRead(id, index, probe, reply);
  };
  actions.work.push_back(
      {.run = [this, pin = *scope.pin, came] { came(ReadPinnedPlan(pin)); },
       .refused = [came] { came(absl::UnavailableError("too much is waiting for the store")); }});
}

void Agreement::PinnedPlanRead(uint64_t scope_id, size_t index, uint64_t probe,
                               const absl::StatusOr<PlanReplyPtr>& reply) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    Presented* presented = FindProbe(scope, index, probe);
    if (presented == nullptr) return;
    presented->probe = 0;
    if (reply.ok()) {
      presented->pinned = *reply;
      if (!StartReplan(*scope, *presented, actions)) KeepPin(*presented);
    } else {
      parts_.metrics.pins_lost.Increment();
      LogLine(spdlog::level::warn, "the pinned plan is lost and planned anew",
              {{"job", scope->job->name.second},
               {"scope", scope->name},
               {"error", std::string(reply.status().message())}});
      scope->pin.reset();
    }
    if (scope->stage == ScopeStage::kGathering)
      Gather(*scope, actions);
    else if (scope->stage == ScopeStage::kComparing)
      CompareStep(*scope, actions);
  }
  Run(std::move(actions));
}

// The first request that names a profile fixes, for its generation, which version that is: that one
// or none, since other scopes may be running with it.
absl::Status Agreement::UseFixedProfile(JobState& job, PlanRequest& request) {
  const auto at = job.profiles
                      .try_emplace(request.profile_as_asked,
                                   FixedProfile{ProfileId(*request.profile), request.profile})
                      .first;
  FixedProfile& fixed = at->second;
  if (fixed.profile == nullptr) {
    absl::StatusOr<ProfilePtr> found = parts_.find_profile(fixed.id);
    if (!found.ok()) return LostProfileError(job, at->first, fixed.id, found.status());
    fixed.profile = *std::move(found);
  }
  if (fixed.profile != request.profile) SetProfile(request, fixed.profile);
  return absl::OkStatus();
}

void Agreement::Probe(uint64_t scope_id, size_t index, uint64_t probe,
                      const std::shared_ptr<PlanRequest>& request) {
  const PlanBroker::CallId call =
      parts_.broker.GetPlan(request, Clock::now() + parts_.options.max_wait,
                            [this, scope_id, index, probe](const Answer& answer) {
                              PlanCame(scope_id, index, probe, answer);
                            });
  if (call == 0) return;
  {
    const Lock lock(mutex_);
    Presented* presented = FindProbe(Find(scope_id), index, probe);
    if (presented != nullptr) {
      presented->broker_call = call;
      return;
    }
  }
  parts_.broker.Cancel(call);  // given up meanwhile; no-op if it has been answered
}

Presented* Agreement::FindProbe(ScopeState* scope, size_t index, uint64_t probe) {
  if (scope == nullptr || index >= scope->presented.size()) return nullptr;
  Presented& presented = scope->presented[index];
  return presented.probe == probe ? &presented : nullptr;
}

void Agreement::CancelProbe(Presented& presented, Actions& actions) {
  if (presented.broker_call != 0) {
    actions.calls.push_back([this, call = presented.broker_call] { parts_.broker.Cancel(call); });
  }
  presented.probe = 0;
  presented.broker_call = 0;
  presented.inline_sender = 0;
  presented.pinned.reset();
  presented.graph_to_judge.reset();
}

void Agreement::PlanCame(uint64_t scope_id, size_t index, uint64_t probe, const Answer& answer) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    Presented* presented = FindProbe(scope, index, probe);
    if (presented == nullptr) return;
    presented->probe = 0;
    presented->broker_call = 0;
    const CallId sender = std::exchange(presented->inline_sender, 0);
    if (presented->pinned != nullptr) {
      FreshPlanCame(*scope, *presented, answer, actions);
    } else if (!answer.ok()) {
      PlanFailed(*scope, *presented, answer.status(), sender, actions);
    } else if (answer->outcome == PlanOutcome::kGraphRequired) {
      AskForGraph(*presented, answer->upload_lease_ms, actions);
      if (scope->stage == ScopeStage::kGathering) Fetch(*scope, *presented, actions);
    } else {
      presented->result = answer;
      if (scope->stage == ScopeStage::kGathering) Gather(*scope, actions);
    }
    // Whatever came of it, the graph may be here now.
    if (Find(scope_id) == scope && scope->stage == ScopeStage::kComparing) {
      CompareStep(*scope, actions);
    }
  }
  Run(std::move(actions));
}

void Agreement::PlanFailed(ScopeState& scope, Presented& presented, const absl::Status& error,
                           CallId inline_sender, Actions& actions) {
  const std::string reason = ReasonOf(error);
  if (inline_sender != 0 && IsFaultOfGraph(reason)) {
    // Its sender alone is told; being told, it is not present any more.
    if (presented.calls.contains(inline_sender)) Remove(inline_sender, error, actions);
  } else if (reason == ReasonName(Reason::kDraining)) {
    Fail(scope, error, AgreementOutcome::kSuperseded, true, actions);
    return;
  } else if (reason == ReasonName(Reason::kDeadline) && scope.expired) {
    Fail(scope, error, AgreementOutcome::kFailed, true, actions);
    return;
  } else if (reason == ReasonName(Reason::kOverloaded)) {
    RetryLater(scope, presented, error);
    return;
  } else if (reason != ReasonName(Reason::kDeadline)) {
    presented.result = error;
  }
  if (scope.stage == ScopeStage::kGathering) Gather(scope, actions);
}

// What passes: the server is overloaded, or the store cannot be read now.
void Agreement::RetryLater(const ScopeState& scope, Presented& presented,
                           const absl::Status& error) {
  presented.last_error = error;
  presented.retry_is_due = true;
  parts_.timers.Schedule(Clock::now() + kRetry,
                         [this, id = scope.id, index = presented.index] { RetryFetch(id, index); });
}

void Agreement::RetryFetch(uint64_t scope_id, size_t index) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    if (scope == nullptr || index >= scope->presented.size()) return;
    scope->presented[index].retry_is_due = false;
    if (scope->stage == ScopeStage::kGathering) Gather(*scope, actions);
  }
  Run(std::move(actions));
}

// The caller who has waited longest is asked. It is not present until it comes back.
void Agreement::AskForGraph(Presented& presented, int64_t lease_ms, Actions& actions) {
  if (presented.calls.empty()) return;  // the lease runs out, and the broker asks again
  const CallId oldest = *presented.calls.begin();
  presented.asked = calls_.find(oldest)->second.ranks;
  presented.asked_to_compare = true;
  Remove(oldest, PlanAnswer{PlanOutcome::kGraphRequired, nullptr, lease_ms, {}}, actions);
}

void Agreement::ArmDeadline(ScopeState& scope) {
  if (scope.deadlines.empty()) return;
  const SteadyTime first = scope.deadlines.begin()->first;
  if (scope.deadline_timer != 0 && scope.deadline_timer_at <= first) return;
  parts_.timers.Cancel(scope.deadline_timer);
  scope.deadline_timer_at = first;
  scope.deadline_timer =
      parts_.timers.Schedule(first, [this, id = scope.id] { DeadlineReached(id); });
}

void Agreement::DeadlineReached(uint64_t scope_id) {
  Actions actions;
  {
    const Lock lock(mutex_);
    ScopeState* scope = Find(scope_id);
    if (scope == nullptr) return;
    scope->deadline_timer = 0;
    AtDeadline(*scope, actions);
  }
  Run(std::move(actions));
}

void Agreement::AtDeadline(ScopeState& scope, Actions& actions) {
  if (scope.deadlines.empty()) return;
  if (scope.deadlines.begin()->first > Clock::now()) {
    ArmDeadline(scope);  // whose deadline it was has left
  } else {
    FailAtDeadline(scope, actions);
  }
}

}  // namespace bucketd
