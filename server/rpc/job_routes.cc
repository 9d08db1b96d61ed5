// JobRoutes: calls that come, where they go, and what is answered here.
#include "server/rpc/job_routes.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/jobs/pins.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMostKnown = size_t{1} << 16;
constexpr milliseconds kFirstPause{50};
constexpr milliseconds kLongestPause{500};

}  // namespace

JobRoutes::CallId JobRoutes::GetPlan(RanksCall call, Done done) {
  return Take(std::move(call), std::move(done), nullptr);
}

JobRoutes::CallId JobRoutes::Serve(RanksCall call, Here done) {
  return Take(std::move(call), nullptr, std::move(done));
}

JobRoutes::CallId JobRoutes::Take(RanksCall asks, Done done, Here here) {
  CallId id = 0;
  CallId gives_way = 0;
  {
    const absl::MutexLock lock(&mutex_);
    id = ++last_id_;
    Call& call = calls_[id];
    call.share = ShareOf(asks.tenant, asks.asker.peer, asks.asker.tenant_is_known);
    gives_way = TakePlace(id, call);
    call.lease = JobLease(asks.tenant, asks.job);
    call.asks = std::move(asks);
    call.done = std::move(done);
    call.here = std::move(here);
    call.deadline_timer = parts_.timers.Schedule(AnswerBy(Clock::now(), call.asks.deadline),
                                                 [this, id] { AtDeadline(id); });
  }
  if (gives_way != 0) {
    End(gives_way, MakeError(Reason::kOverloaded,
                             gives_way == id ? "too many ranks wait for each other"
                                             : "too many ranks wait for each other, most of them "
                                               "yours: one of another gets the place",
                             {.limit = parts_.most_calls}));
    if (gives_way != id) parts_.metrics.displaced_ranks.Increment();
  }
  Start(id, 0);
  const absl::MutexLock lock(&mutex_);
  return calls_.contains(id) ? id : 0;
}

JobRoutes::CallId JobRoutes::TakePlace(CallId id, Call& call) {
  CallId gives_way = 0;
  if (placed_ >= parts_.most_calls) {
    gives_way = places_.GivesWayTo(call.share);
    if (gives_way == 0) return id;
    LeavePlace(gives_way, calls_.at(gives_way));
  }
  places_.Add(call.share, id);
  call.has_place = true;
  ++placed_;
  return gives_way;
}

void JobRoutes::LeavePlace(CallId id, Call& call) {
  if (!std::exchange(call.has_place, false)) return;
  places_.Remove(call.share, id);
  --placed_;
}

JobRoutes::Call* JobRoutes::Find(CallId id, Leg leg) {
  const auto found = calls_.find(id);
  return found != calls_.end() && found->second.leg == leg ? &found->second : nullptr;
}

std::optional<JobRoutes::Call> JobRoutes::TakeOut(CallId id, std::optional<Leg> leg) {
  std::optional<Call> call;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(id);
    if (found == calls_.end() || found->second.leg != leg.value_or(found->second.leg)) return call;
    LeavePlace(id, found->second);
    call = std::move(found->second);
    calls_.erase(found);
  }
  parts_.timers.Cancel(call->deadline_timer);
  return call;
}

JobRoutes::Stay JobRoutes::EndStay(Call& call) {
  Stay stay{std::exchange(call.id_here, 0), std::exchange(call.there, nullptr)};
  call.where = Where::kNowhere;
  ++call.leg;
  return stay;
}

void JobRoutes::Leave(const Stay& stay) {
  if (stay.id_here != 0) parts_.cancel_here(stay.id_here);
  if (stay.there != nullptr) stay.there->Cancel();
}

void JobRoutes::Tell(const Call& call, const Answer& answer) {
  if (call.here != nullptr) {
    call.here(answer, std::nullopt);
  } else {
    call.done(answer);
  }
}

void JobRoutes::Finish(CallId id, Leg leg, const Answer& answer) {
  if (const std::optional<Call> call = TakeOut(id, leg)) Tell(*call, answer);
}

void JobRoutes::FinishMoved(CallId id, Leg leg, const std::optional<ReplicaId>& holder) {
  std::optional<Call> call = TakeOut(id, leg);
  if (!call.has_value()) return;
  Leave(EndStay(*call));
  call->here(std::nullopt, holder);
}

void JobRoutes::Cancel(CallId id) { End(id, CallerGone()); }

void JobRoutes::End(CallId id, const absl::Status& why) {
  std::optional<Call> call = TakeOut(id, std::nullopt);
  if (!call.has_value()) return;
  Leave(EndStay(*call));
  Tell(*call, why);
}

// Wherever it is, it is answered there.
void JobRoutes::AtDeadline(CallId id) {
  std::string why;
  Leg leg = 0;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(id);
    if (found == calls_.end() || found->second.where != Where::kNowhere) return;
    leg = found->second.leg;
    why = found->second.why;
    const std::string& not_known = found->second.not_known;
    if (!not_known.empty()) {
      absl::StrAppend(&why, why.empty() ? "" : "; ", "which one it is is not known: ", not_known);
    }
  }
  Finish(id, leg,
         MakeError(Reason::kDeadline,
                   absl::StrCat("the deadline came before the replica that has this job could be "
                                "asked: ",
                                why.empty() ? "the store has not said yet which one it is" : why)));
}

// ---- where to

void JobRoutes::Start(CallId id, Leg leg) {
  bool is_here = false;
  std::optional<ReplicaId> owner;
  LeaseName name;
  Shares::Path share;
  {
    const absl::MutexLock lock(&mutex_);
    const Call* call = Find(id, leg);
    if (call == nullptr) return;
    name = call->lease;
    share = call->share;
    is_here = parts_.leases.Use(name);
    const auto known = is_here ? known_.end() : known_.find(name);
    const bool is_elsewhere = known != known_.end() && known->second != parts_.members.self();
    if (call->here == nullptr && is_elsewhere) {
      owner = known->second;
    } else if (!is_here) {
      Waiting& waiting = looking_[name];
      waiting.emplace_back(id, leg);
      if (waiting.size() > 1) return;
    }
  }
  if (is_here) {
    StayHere(id, leg, true);
  } else if (owner.has_value()) {
    StayThere(id, leg, *owner);
  } else {
    parts_.pool.Submit(
        share, [this, name, id, leg] { LookUpNow(name, id, leg); },
        [this, name] {
          TellAll(name, MakeError(Reason::kOverloaded, "too much is waiting for the store"),
                  nullptr);
        });
  }
}

void JobRoutes::LookUpNow(const LeaseName& name, CallId first, Leg leg) {
  ReadBehind behind;
  auto records = std::make_shared<ScopeRecords>();
  {
    const absl::MutexLock lock(&mutex_);
    if (const Call* call = Find(first, leg); call != nullptr) {
      records->scope = call->asks.scope;
      behind.names = Pins::NamesOf(call->asks.tenant, call->asks.job, records->scope);
    }
  }
  const absl::StatusOr<Lease> lease = parts_.leases.Take(name, &behind);
  records->values = std::move(behind.values);
  TellAll(name, lease, records->values.empty() ? nullptr : std::move(records));
}

void JobRoutes::TellAll(const LeaseName& name, const absl::StatusOr<Lease>& lease,
                        const Records& records) {
  Waiting waiting;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = looking_.find(name);
    if (found == looking_.end()) return;
    waiting = std::move(found->second);
    looking_.erase(found);
    if (lease.ok() && !lease->mine) Remember(name, lease->holder);
  }
  for (const auto& [id, leg] : waiting) Found(id, leg, lease, records);
}

void JobRoutes::Remember(const LeaseName& name, const ReplicaId& owner) {
  if (known_.size() >= kMostKnown) known_.clear();
  known_[name] = owner;
}

void JobRoutes::Found(CallId id, Leg leg, const absl::StatusOr<Lease>& lease,
                      const Records& records) {
  bool is_served = false;  // for another replica
  bool other_was_asked = false;
  std::optional<ReplicaId> hint;
  std::string key;
  {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call == nullptr) return;
    call->not_known = std::string(lease.status().message());
    is_served = call->here != nullptr;
    hint = call->hint;
    other_was_asked = call->other_was_asked;
    key = call->lease.key;
  }
  if (lease.ok()) {
    if (lease->mine) {
      StayHere(id, leg, true, records);
    } else if (is_served) {
      FinishMoved(id, leg, lease->holder);
    } else {
      StayThere(id, leg, lease->holder);
    }
    return;
  }
  if (ReasonOf(lease.status()) == ReasonName(Reason::kOverloaded)) {
    Finish(id, leg, lease.status());
    return;
  }
  // The store does not say whose the job is, or it is nobody's and this one may not take it.
  ReplicaId owner = hint.value_or(parts_.members.HashedOwner(key));
  bool is_ours = owner == parts_.members.self();
  // Perhaps it is this one alone that the store does not answer.
  const std::optional<ReplicaId> other = parts_.members.HashedOther(key);
  if (is_ours && !is_served && !other_was_asked && other.has_value()) {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call == nullptr) return;
    call->other_was_asked = true;
    owner = *other;
    is_ours = false;
  }
  if (is_ours && (!is_served || !absl::IsFailedPrecondition(lease.status()))) {
    StayHere(id, leg, false);
  } else if (is_served) {
    FinishMoved(id, leg, std::nullopt);
  } else {
    StayThere(id, leg, owner);
  }
}

void JobRoutes::Again(CallId id, Leg leg, const ReplicaId& was,
                      const std::optional<ReplicaId>& hint, absl::string_view why) {
  Stay stay;
  bool is_late = false;
  {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call == nullptr) return;
    stay = EndStay(*call);
    leg = call->leg;
    const SteadyTime now = Clock::now();
    is_late = AnswerBy(now, call->asks.deadline) <= now;
    const auto known = known_.find(call->lease);
    if (known != known_.end() && known->second == was) known_.erase(known);
    call->hint = hint;
    if (hint.has_value()) Remember(call->lease, *hint);
    call->why = std::string(why);
    const milliseconds pause =
        std::min<milliseconds>(kLongestPause, kFirstPause * (1 << std::min(call->moves, 4)));
    const bool at_once = hint.has_value() && call->moves == 0;
    ++call->moves;
    // Where that is later than the deadline, the deadline's timer has the word.
    parts_.timers.Schedule(now + (at_once ? milliseconds(0) : pause),
                           [this, id, leg] { Start(id, leg); });
  }
  parts_.metrics.represented.Increment();
  CrashPoint("forward: to be presented anew");
  Leave(stay);
  if (is_late) AtDeadline(id);
}

void JobRoutes::Look() {
  struct Moved {
    CallId id;
    Leg leg;
    ReplicaId was;
    bool is_served;
  };
  std::vector<Moved> moved;
  const std::vector<ReplicaView> members = parts_.members.List();
  absl::flat_hash_set<std::pair<absl::string_view, uint64_t>> live;
  for (const ReplicaView& replica : members) {
    live.emplace(replica.id.address, replica.id.incarnation);
  }
  const bool lapsed = parts_.members.lapsed();
  {
    const absl::MutexLock lock(&mutex_);
    absl::flat_hash_map<absl::string_view, bool> held;  // by job
    for (auto& [id, call] : calls_) {
      bool has_moved = false;
      if (call.where == Where::kHere && !draining_) {
        const auto [is_held, is_first] = held.emplace(call.lease.key, false);
        if (is_first) is_held->second = parts_.leases.Use(call.lease);
        has_moved = !is_held->second && (call.has_lease || !lapsed);
      } else if (call.where == Where::kThere) {
        has_moved = !live.contains({call.owner.address, call.owner.incarnation});
      }
      if (has_moved) moved.push_back({id, call.leg, call.owner, call.here != nullptr});
    }
  }
  std::sort(moved.begin(), moved.end(), [](const Moved& a, const Moved& b) { return a.id < b.id; });
  for (const Moved& call : moved) {
    if (call.is_served) {
      FinishMoved(call.id, call.leg, std::nullopt);
    } else {
      Again(call.id, call.leg, call.was, std::nullopt, "the replica that had it has ended");
    }
  }
}

void JobRoutes::BeginDrain() {
  const absl::MutexLock lock(&mutex_);
  draining_ = true;
}

// ---- here

void JobRoutes::StayHere(CallId id, Leg leg, bool has_lease, const Records& records) {
  RanksCall asks;
  {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call == nullptr) return;
    call->where = Where::kHere;
    call->has_lease = has_lease;
    asks = call->asks;
  }
  if (records != nullptr && records->scope == asks.scope) asks.records = records;
  const uint64_t here =
      parts_.ask_here(asks, [this, id, leg](const Answer& answer) { Finish(id, leg, answer); });
  {
    const absl::MutexLock lock(&mutex_);
    Call* call = Find(id, leg);
    if (call != nullptr) {
      call->id_here = here;
      return;
    }
  }
  parts_.cancel_here(here);  // no-op if that has answered it
}

}  // namespace bucketd
