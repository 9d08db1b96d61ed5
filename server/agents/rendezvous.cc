#include "server/agents/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <sys/random.h>

#include "passes/base/status_macros.h"
#include "server/base/errors.h"
#include "server/base/names.h"

namespace bucketd {
namespace {

constexpr size_t kTokenBytes = 32;
constexpr size_t kMaxWhyBytes = 1024;
constexpr char kDraining[] = "the server is shutting down; groups have to meet anew at the next";

absl::StatusOr<std::string> NewToken() {
  std::string token(kTokenBytes, '\0');
  if (getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size())) return token;
  return absl::InternalError("the system gave no random bytes");
}

absl::Status TooLong(absl::string_view field, size_t actual, size_t limit) {
  return MakeError(
      Reason::kJobInvalid, absl::StrCat(field, ": ", actual, " bytes; at most ", limit),
      {.limit = static_cast<int64_t>(limit), .actual = static_cast<int64_t>(actual), .node = {}});
}

}  // namespace

Rendezvous::Rendezvous(Timers& timers, std::function<int64_t()> now_ms,
                       std::function<uint64_t()> next_epoch, RendezvousLimits limits)
    : timers_(timers),
      now_ms_(std::move(now_ms)),
      next_epoch_(std::move(next_epoch)),
      limits_(limits) {}

Rendezvous::~Rendezvous() { BeginDrain(); }

void Rendezvous::BeginDrain() {
  Later later;
  {
    const absl::MutexLock lock(&mutex_);
    draining_ = true;
    const absl::Status status = MakeError(Reason::kDraining, kDraining);
    for (auto& [key, group] : groups_) {
      for (auto& [rank, waiter] : group.waiting) Dismiss(waiter, status, later);
      group.waiting.clear();
      for (auto& [id, watcher] : group.watchers) {
        timers_.Cancel(watcher.timer);
        where_.erase(id);
        later.push_back([done = std::move(watcher.done), status] { done(status); });
      }
      group.watchers.clear();
    }
    watchers_ = 0;
  }
  Run(later);
}

absl::Status Rendezvous::Check(const Call& call) const {
  if (draining_) return MakeError(Reason::kDraining, kDraining);
  RETURN_IF_ERROR(CheckTenant(call.tenant));
  RETURN_IF_ERROR(CheckJobName("group", call.group));
  if (call.size == 0 || call.size > limits_.max_size) {
    return MakeError(Reason::kJobInvalid,
                     absl::StrCat("size: ", call.size, " ranks; expected 1 to ", limits_.max_size),
                     {.limit = limits_.max_size, .actual = call.size, .node = {}});
  }
  if (call.rank >= call.size) {
    return MakeError(Reason::kJobInvalid, absl::StrCat("rank: ", call.rank, " of ", call.size,
                                                       "; expected 0 to ", call.size - 1));
  }
  if (call.endpoint.empty() || call.endpoint.size() > limits_.max_endpoint_bytes) {
    return TooLong("endpoint", call.endpoint.size(), limits_.max_endpoint_bytes);
  }
  if (call.agrees.size() > limits_.max_agrees_bytes) {
    return TooLong("agrees", call.agrees.size(), limits_.max_agrees_bytes);
  }
  return absl::OkStatus();
}

// The map is bounded: what nobody waits for makes room, the longest untouched first.
absl::StatusOr<Rendezvous::Group*> Rendezvous::FindOrMake(const Key& key) {
  const auto found = groups_.find(key);
  if (found != groups_.end()) return &found->second;
  if (groups_.size() >= limits_.max_groups) {
    auto oldest = groups_.end();
    for (auto it = groups_.begin(); it != groups_.end(); ++it) {
      if (!it->second.waiting.empty() || !it->second.watchers.empty()) continue;
      if (oldest == groups_.end() || it->second.touched_ms < oldest->second.touched_ms) oldest = it;
    }
    if (oldest == groups_.end()) {
      return MakeError(Reason::kOverloaded,
                       absl::StrCat("all of ", limits_.max_groups, " groups are waited for"));
    }
    groups_.erase(oldest);
  }
  return &groups_[key];
}

absl::Status Rendezvous::CheckAgainst(const Group& group, const Call& call) const {
  if (group.waiting.empty()) return absl::OkStatus();
  const uint32_t other = group.waiting.begin()->first;
  if (call.size != group.size) {
    return MakeError(Reason::kRendezvousDiffers,
                     absl::StrCat("group ", call.group, ": rank ", call.rank, " speaks of ",
                                  call.size, " ranks, rank ", other, " of ", group.size));
  }
  if (call.agrees == group.agrees) return absl::OkStatus();
  return MakeError(
      Reason::kRendezvousDiffers,
      absl::StrCat("group ", call.group, ": ranks ", other, " and ", call.rank,
                   " do not agree on what they will run: \"", absl::CHexEscape(group.agrees),
                   "\" and \"", absl::CHexEscape(call.agrees), "\""));
}

Rendezvous::Id Rendezvous::Join(const Call& call, SteadyTime deadline, OnMet done) {
  Later later;
  absl::StatusOr<Id> id;
  {
    const absl::MutexLock lock(&mutex_);
    id = JoinLocked(call, deadline, done, later);
  }
  Run(later);
  if (!id.ok()) done(id.status());
  return id.value_or(0);
}

absl::StatusOr<Rendezvous::Id> Rendezvous::JoinLocked(const Call& call, SteadyTime deadline,
                                                      const OnMet& done, Later& later) {
  RETURN_IF_ERROR(Check(call));
  const Key key(call.tenant, call.group);
  ASSIGN_OR_RETURN(Group* const group, FindOrMake(key));
  const absl::Status agrees = CheckAgainst(*group, call);
  if (!agrees.ok()) {  // they would wait for a rank that will not come
    for (auto& [rank, waiter] : group->waiting) Dismiss(waiter, agrees, later);
    group->waiting.clear();
    return agrees;
  }
  if (group->epoch != 0 && !group->over) {
    EndLocked(*group, absl::StrCat("rank ", call.rank, " came to a new rendezvous"), later);
  }
  group->touched_ms = now_ms_();
  group->size = call.size;
  group->agrees = call.agrees;
  Waiter& waiter = group->waiting[call.rank];
  if (waiter.id != 0) {
    const std::string text = absl::StrCat("rank ", call.rank, " called again: that call counts");
    Dismiss(waiter, MakeError(Reason::kCancelled, text), later);
  }
  const Id id = ++last_id_;
  waiter = {id, timers_.Schedule(deadline, [this, id] { TimeOut(id); }), done, call.endpoint};
  where_[id] = key;
  if (group->waiting.size() < group->size) return id;
  Meet(*group, later);
  return Id{0};
}

void Rendezvous::Dismiss(Waiter& waiter, const absl::StatusOr<std::shared_ptr<const Met>>& answer,
                         Later& later) {
  timers_.Cancel(waiter.timer);
  where_.erase(waiter.id);
  later.push_back([done = std::move(waiter.done), answer] { done(answer); });
}

void Rendezvous::Meet(Group& group, Later& later) {
  const absl::StatusOr<std::string> token = NewToken();
  auto met = std::make_shared<Met>();
  for (const auto& [rank, waiter] : group.waiting) met->endpoints.push_back(waiter.endpoint);
  absl::StatusOr<std::shared_ptr<const Met>> answer;
  if (!token.ok()) {
    answer = token.status();
  } else {
    met->token = *token;
    met->epoch = group.epoch = next_epoch_();
    answer = std::move(met);
    group.epoch_size = group.size;
    group.over = false;
    group.why.clear();
  }
  for (auto& [rank, waiter] : group.waiting) Dismiss(waiter, answer, later);
  group.waiting.clear();
}

Rendezvous::Id Rendezvous::Watch(const Epoch& epoch, SteadyTime deadline, OnFate done) {
  absl::StatusOr<Fate> fate = Fate{};
  {
    const absl::MutexLock lock(&mutex_);
    const Key key(epoch.tenant, epoch.group);
    const auto found = groups_.find(key);
    if (draining_) {
      fate = MakeError(Reason::kDraining, kDraining);
    } else if (found == groups_.end() || epoch.number > found->second.epoch) {
      fate = MakeError(Reason::kEpochUnknown,
                       absl::StrCat("group ", epoch.group, " has no epoch ", epoch.number,
                                    "; if the server started anew, so must the group"));
    } else if (epoch.number < found->second.epoch) {
      fate = Fate{true, absl::StrCat("epoch ", found->second.epoch, " has begun")};
    } else if (found->second.over) {
      fate = Fate{true, found->second.why};
    } else if (watchers_ >= limits_.max_watchers) {
      fate = MakeError(Reason::kOverloaded, "too many calls watch epochs");
    } else {
      const Id id = ++last_id_;
      found->second.watchers[id] = {timers_.Schedule(deadline, [this, id] { TimeOut(id); }),
                                    std::move(done)};
      where_[id] = key;
      ++watchers_;
      return id;
    }
  }
  done(fate);
  return 0;
}

absl::Status Rendezvous::End(const Epoch& epoch, uint32_t rank, const std::string& why) {
  if (why.size() > kMaxWhyBytes) return TooLong("why", why.size(), kMaxWhyBytes);
  Later later;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = groups_.find(Key(epoch.tenant, epoch.group));
    if (found == groups_.end() || epoch.number > found->second.epoch) {
      return MakeError(Reason::kEpochUnknown,
                       absl::StrCat("group ", epoch.group, " has no epoch ", epoch.number));
    }
    Group& group = found->second;
    if (rank >= group.epoch_size) {
      return MakeError(Reason::kJobInvalid,
                       absl::StrCat("rank: ", rank, " of an epoch of ", group.epoch_size));
    }
    if (epoch.number == group.epoch && !group.over) {
      EndLocked(group, absl::StrCat("rank ", rank, ": ", why), later);
    }
  }
  Run(later);
  return absl::OkStatus();
}

void Rendezvous::EndLocked(Group& group, std::string why, Later& later) {
  group.over = true;
  group.why = std::move(why);
  group.touched_ms = now_ms_();
  for (auto& [id, watcher] : group.watchers) {
    timers_.Cancel(watcher.timer);
    where_.erase(id);
    later.push_back([done = std::move(watcher.done), why = group.why] { done(Fate{true, why}); });
  }
  watchers_ -= group.watchers.size();
  group.watchers.clear();
}

absl::Status Rendezvous::Missing(const Group& group) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < group.size; ++rank) {
    if (group.waiting.count(rank) == 0) missing.push_back(rank);
  }
  return MakeError(Reason::kRanksMissing,
                   absl::StrCat(NameRanks(missing), " of ", group.size, " did not come in time"));
}

void Rendezvous::TimeOut(Id id) {
  Later later;
  {
    const absl::MutexLock lock(&mutex_);
    const auto where = where_.find(id);
    if (where == where_.end()) return;  // answered while the timer ran
    Group& group = groups_.at(where->second);
    where_.erase(where);
    const auto watcher = group.watchers.find(id);
    if (watcher != group.watchers.end()) {
      later.push_back([done = std::move(watcher->second.done)] { done(Fate{}); });
      group.watchers.erase(watcher);
      --watchers_;
    }
    for (auto it = group.waiting.begin(); it != group.waiting.end(); ++it) {
      if (it->second.id != id) continue;
      later.push_back(
          [done = std::move(it->second.done), status = Missing(group)] { done(status); });
      group.waiting.erase(it);
      break;
    }
  }
  Run(later);
}

bool Rendezvous::Cancel(Id id) {
  const absl::MutexLock lock(&mutex_);
  const auto where = where_.find(id);
  if (where == where_.end()) return false;
  Group& group = groups_.at(where->second);
  where_.erase(where);
  const auto watcher = group.watchers.find(id);
  if (watcher != group.watchers.end()) {
    timers_.Cancel(watcher->second.timer);
    group.watchers.erase(watcher);
    --watchers_;
    return true;
  }
  for (auto it = group.waiting.begin(); it != group.waiting.end(); ++it) {
    if (it->second.id != id) continue;
    timers_.Cancel(it->second.timer);
    group.waiting.erase(it);
    return true;
  }
  return false;
}

void Rendezvous::Run(const Later& later) {
  for (const std::function<void()>& run : later) run();
}

}  // namespace bucketd
