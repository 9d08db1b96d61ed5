// JobRoutes: calls at another replica, and what comes back.
#include <utility>

#include "absl/strings/str_cat.h"

#include "passes/plan_key.h"
#include "server/base/errors.h"
#include "server/rpc/job_routes.h"
#include "server/rpc/plan_source.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

constexpr int kMostBrought = 3;  // times that one call brings its graph
constexpr size_t kMostOwed = 4096;

v1::ForwardRequest MessageOf(const RanksCall& call, const ReplicaId& owner, bool with_plan) {
  v1::ForwardRequest message;
  message.set_incarnation(owner.incarnation);
  message.set_request(*call.request);
  message.set_with_plan(with_plan);
  const Asker& asker = call.asker;
  v1::ForwardedCaller& caller = *message.mutable_caller();
  caller.set_name(asker.by.who);
  caller.set_host(asker.peer);
  caller.set_tenant(asker.by.tenant);
  caller.set_tenant_is_known(asker.tenant_is_known);
  caller.set_request_id(asker.call.request);
  caller.set_trace_id(asker.call.trace);
  caller.set_span_id(asker.call.span);
  caller.set_parent_span_id(asker.call.parent_span);
  return message;
}

}  // namespace

void JobRoutes::StayThere(CallId id, Leg leg, const ReplicaId& owner) {
  bool bring = false;
  Shares::Path share;
  {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call == nullptr) return;
    share = call->share;
    call->where = Where::kThere;
    call->owner = owner;
    const auto owed = owed_.find(call->asks.graph_key);
    bring = owed != owed_.end() && owed->second == owner &&
            parts_.graphs.Contains(call->asks.graph_key);
    if (bring) owed_.erase(owed);  // others of that graph need not
  }
  const auto forward = [this, id, leg] { Forward(id, leg); };
  if (bring) {
    parts_.uploads.Submit(
        share, [this, id, leg] { BringGraph(id, leg); }, forward);
  } else {
    forward();
  }
}

void JobRoutes::BringGraph(CallId id, Leg leg) {
  RanksCall asks;
  ReplicaId owner;
  {
    const absl::MutexLock lock(&mutex_);
    const Call* call = Find(id, leg);
    if (call == nullptr) return;
    asks = call->asks;
    owner = call->owner;
  }
  // What does not arrive is asked for again.
  if (const GraphPtr graph = parts_.graphs.Get(asks.graph_key)) {
    const absl::Status brought =
        parts_.peers.BringGraph(owner.address, asks.tenant, asks.graph, *graph, asks.deadline);
    if (brought.ok()) parts_.metrics.graphs_brought.Increment();
    CrashPoint("forward: graph brought");
  }
  Forward(id, leg);
}

void JobRoutes::Forward(CallId id, Leg leg) {
  v1::ForwardRequest message;
  std::string address;
  SteadyTime deadline;
  // Cut off from the store, a plan could not be read, and the job may move before it is asked for.
  const bool cannot_read = parts_.members.lapsed();
  {
    const absl::MutexLock lock(&mutex_);
    const Call* call = Find(id, leg);
    if (call == nullptr) return;
    message = MessageOf(call->asks, call->owner, call->with_plan || cannot_read);
    address = call->owner.address;
    deadline = call->asks.deadline;
  }
  std::shared_ptr<PeerCalls::Call> there = parts_.peers.Forward(
      address, std::move(message), deadline,
      [this, id, leg](const absl::StatusOr<v1::ForwardReply>& reply) { Came(id, leg, reply); });
  CrashPoint("forward: sent");
  {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call != nullptr) {
      call->there = std::move(there);
      return;
    }
  }
  there->Cancel();
}

void JobRoutes::Came(CallId id, Leg leg, const absl::StatusOr<v1::ForwardReply>& reply) {
  ReplicaId owner;
  {
    const absl::MutexLock lock(&mutex_);
    const Call* call = Find(id, leg);
    if (call == nullptr) return;
    owner = call->owner;
  }
  if (absl::IsResourceExhausted(reply.status())) {
    TooLarge(id, leg, owner, reply.status());
    return;
  }
  if (!reply.ok()) {
    // What is no replica says nothing at all.
    const std::string why(reply.status().message());
    Broken(id, leg, owner, why.empty() ? StatusCodeToString(reply.status().code()) : why);
    return;
  }
  unreached_.Answered(owner.address);
  CrashPoint("forward: answer came");
  switch (reply->answer_case()) {
    case v1::ForwardReply::kPlan:
      UsePlan(id, leg, owner, reply->plan());
      return;
    case v1::ForwardReply::kGraphRequired:
      GraphRequired(id, leg, owner, reply->graph_required().upload_lease_ms());
      return;
    case v1::ForwardReply::kUnplanned:
      parts_.metrics.forwarded(ForwardOutcome::kUnplanned).Increment();
      Finish(id, leg, PlanAnswer{PlanOutcome::kUnplanned, nullptr, 0, reply->unplanned().why()});
      return;
    case v1::ForwardReply::kError:
      UseError(id, leg, owner, ParseRpcStatus(reply->error()));
      return;
    case v1::ForwardReply::kMoved:
      UseMoved(id, leg, owner, reply->moved());
      return;
    case v1::ForwardReply::ANSWER_NOT_SET:
      Broken(id, leg, owner, "an answer without any");
      return;
  }
}

// The transport refuses what is larger than its limit: it would do so again.
void JobRoutes::TooLarge(CallId id, Leg leg, const ReplicaId& owner, const absl::Status& why) {
  parts_.metrics.forwarded(ForwardOutcome::kError).Increment();
  Finish(id, leg,
         MakeError(Reason::kRequestTooLarge,
                   absl::StrCat("a GetPlanRequest that the replica at ", owner.address,
                                ", which has the job, does not take: ", why.message())));
}

void JobRoutes::Broken(CallId id, Leg leg, const ReplicaId& owner, absl::string_view why) {
  parts_.metrics.forwarded(ForwardOutcome::kBroken).Increment();
  unreached_.Failed(owner.address, why, std::chrono::steady_clock::now());
  Again(id, leg, owner, std::nullopt,
        absl::StrCat("the replica at ", owner.address, " cannot be asked: ", why));
}

void JobRoutes::UseMoved(CallId id, Leg leg, const ReplicaId& owner, const v1::Moved& moved) {
  parts_.metrics.forwarded(ForwardOutcome::kMoved).Increment();
  const ReplicaId holder{moved.holder(), moved.incarnation()};
  const bool is_known = !holder.address.empty();
  if (is_known) {
    // The store answers others. If they take this one, which does not have it, for the holder, they
    // will find out that it is cut off.
    const absl::MutexLock lock(&mutex_);
    if (Call* call = Find(id, leg)) call->other_was_asked = false;
  }
  const bool is_news = is_known && holder != owner && holder != parts_.members.self();
  Again(id, leg, owner, is_news ? std::optional(holder) : std::nullopt,
        absl::StrCat(owner.address, " does not have it"));
}

void JobRoutes::UseError(CallId id, Leg leg, const ReplicaId& owner, const absl::Status& error) {
  if (ReasonOf(error) == ReasonName(Reason::kDraining)) {
    parts_.metrics.forwarded(ForwardOutcome::kMoved).Increment();
    Again(id, leg, owner, std::nullopt, absl::StrCat(owner.address, " is shutting down"));
    return;
  }
  parts_.metrics.forwarded(ForwardOutcome::kError).Increment();
  Finish(id, leg, error);
}

void JobRoutes::GraphRequired(CallId id, Leg leg, const ReplicaId& owner, int64_t lease_ms) {
  bool is_here = false;
  {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call == nullptr) return;
    is_here = parts_.graphs.Contains(call->asks.graph_key) && call->graphs_brought < kMostBrought;
    if (owed_.size() >= kMostOwed) owed_.clear();
    owed_[call->asks.graph_key] = owner;
    if (is_here) {
      ++call->graphs_brought;
      EndStay(*call);
      leg = call->leg;
    }
  }
  parts_.metrics.forwarded(ForwardOutcome::kGraphRequired).Increment();
  if (is_here) {
    StayThere(id, leg, owner);
  } else {
    Finish(id, leg, PlanAnswer{PlanOutcome::kGraphRequired, nullptr, lease_ms, {}});
  }
}

// ---- plans, which come by reference

void JobRoutes::UsePlan(CallId id, Leg leg, const ReplicaId& owner, const v1::PlanReference& plan) {
  const absl::StatusOr<Digest> sha256 = DigestFromBytes(plan.plan_sha256());
  const bool is_whole = plan.plan().empty() || (sha256.ok() && Sha256(plan.plan()) == *sha256);
  if (!sha256.ok() || !is_whole) {
    Broken(id, leg, owner, "its plan is not the one that it names");
    return;
  }
  // Whoever has the job says which plan its ranks agreed on; of another tenant's, or for another
  // graph, it cannot be.
  bool is_its_own = false;
  Shares::Path share;
  Digest graph{};
  {
    const absl::MutexLock lock(&mutex_);
    const Call* call = Find(id, leg);
    if (call == nullptr) return;  // nobody is left to say whose plan it would have to be
    is_its_own = IsPlanKeyOf(plan.key(), call->asks.tenant, call->asks.graph);
    share = call->share;
    graph = call->asks.graph;  // all who wait for that key name it
  }
  if (!is_its_own) {
    Broken(id, leg, owner, "its plan is another graph's, or another tenant's");
    return;
  }
  PlanReplyPtr reply = parts_.cache.Get(plan.key());
  if (reply != nullptr && reply->plan_sha256 != *sha256) reply = nullptr;
  if (reply == nullptr && !plan.plan().empty()) {
    reply = EncodePlanReply(plan.plan(), plan.key());
    parts_.cache.Put(plan.key(), reply);
  }
  if (reply != nullptr) {
    AnswerPlan(id, leg, plan.source(), reply);
    return;
  }
  {
    const absl::MutexLock lock(&mutex_);
    std::vector<PlanWaits>& waiting = reading_[plan.key()];
    waiting.push_back({id, leg, *sha256, plan.source()});
    if (waiting.size() > 1) return;
  }
  parts_.pool.Submit(
      share, [this, key = plan.key(), graph] { ReadPlan(key, graph); },
      [this, key = plan.key()] { TellPlan(key, nullptr); });
}

void JobRoutes::ReadPlan(const std::string& key, const Digest& graph) {
  // Errors are counted and logged by the store's observer.
  const absl::StatusOr<PlanReplyPtr> found = parts_.stored.Find(key, graph);
  CrashPoint("forward: plan read");
  TellPlan(key, found.ok() ? *found : nullptr);
}

void JobRoutes::TellPlan(const std::string& key, const PlanReplyPtr& reply) {
  std::vector<PlanWaits> waiting;
  {
    const absl::MutexLock lock(&mutex_);
    waiting = std::move(reading_[key]);
    reading_.erase(key);
  }
  bool is_cached = false;
  for (const PlanWaits& call : waiting) {
    if (reply == nullptr || reply->plan_sha256 != call.sha256) {
      AskWithPlan(call.id, call.leg);
      continue;
    }
    if (!std::exchange(is_cached, true)) parts_.cache.Put(key, reply);
    AnswerPlan(call.id, call.leg, call.source, reply);
  }
}

// The store does not have it, or cannot be read: whoever answered has.
void JobRoutes::AskWithPlan(CallId id, Leg leg) {
  ReplicaId owner;
  {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call == nullptr) return;
    owner = call->owner;
    call->with_plan = true;
    EndStay(*call);
    leg = call->leg;
  }
  StayThere(id, leg, owner);
}

void JobRoutes::AnswerPlan(CallId id, Leg leg, v1::PlanSource source, const PlanReplyPtr& reply) {
  parts_.metrics.forwarded(ForwardOutcome::kPlan).Increment();
  Finish(id, leg, PlanAnswer{OutcomeOf(source), reply, 0, {}});
}

}  // namespace bucketd
