#include "server/agents/rendezvous.h"

#include <algorithm>
#include <chrono>
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
// Timers' thread, or gRPC's, answers this many by itself.
constexpr size_t kAnswersInline = 64;
constexpr int kMaxQueuedAnswers = 4096;  // one entry a group
constexpr char kDraining[] = "the server is shutting down; groups have to meet anew at the next";

absl::StatusOr<std::string> NewToken() {
  std::string token(kTokenBytes, '\0');
  if (getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size())) return token;
  return absl::InternalError("the system gave no random bytes");
}

absl::Status TooLong(absl::string_view field, size_t actual, size_t limit) {
  return MakeError(Reason::kJobInvalid,
                   absl::StrCat(field, ": ", actual, " bytes; at most ", limit),
                   {.limit = static_cast<int64_t>(limit), .actual = static_cast<int64_t>(actual)});
}

}  // namespace

Rendezvous::Rendezvous(Timers& timers, std::function<uint64_t()> next_epoch,
                       RendezvousLimits limits, std::function<void()> displaced)
    : timers_(timers),
      next_epoch_(std::move(next_epoch)),
      limits_(limits),
      displaced_(std::move(displaced)),
      answers_(1, kMaxQueuedAnswers) {}

Rendezvous::~Rendezvous() {
  answers_.Stop();
  BeginDrain();
}

void Rendezvous::BeginDrain() {
  Later later;
  {
    const absl::MutexLock lock(&mutex_);
    draining_ = true;
    const absl::Status status = MakeError(Reason::kDraining, kDraining);
    for (auto& [key, group] : groups_) LetGo(group, status, later);
  }
  Run(std::move(later));
}

void Rendezvous::LetGo(Group& group, const absl::Status& why, Later& later) {
  for (auto& [rank, waiter] : group.waiting) Dismiss(waiter, why, later);
  group.waiting.clear();
  while (!group.watchers.empty()) LetWatcherGo(group, group.watchers.begin()->first, why, later);
  Touch(group);
}

void Rendezvous::LetWatcherGo(Group& group, Id id, const absl::StatusOr<Fate>& fate, Later& later) {
  const auto watcher = group.watchers.find(id);
  later.push_back([done = std::move(watcher->second), fate] { done(fate); });
  group.watchers.erase(watcher);
  Leave(id);
}

void Rendezvous::LetCallGo(Id id, const absl::Status& why, Later& later) {
  const Place place = where_.at(id);
  Group& group = groups_.at(place.group);
  if (group.watchers.contains(id)) {
    LetWatcherGo(group, id, why, later);
  } else {
    const auto waiter = group.waiting.find(place.rank);
    Dismiss(waiter->second, why, later);
    group.waiting.erase(waiter);
  }
  Touch(group);
}

void Rendezvous::Touch(Group& group) {
  const uint64_t since = std::exchange(group.spare_since, 0);
  if (since != 0) group_places_.SetNeeded(group.share, group.number, since);
  if (group.waiting.empty()) group.gave_up.clear();
  if (!group.waiting.empty() || !group.watchers.empty()) return;
  group.spare_since = ++last_use_;
  group_places_.SetSpare(group.share, group.number, group.spare_since);
}

absl::Status Rendezvous::Check(const Call& call) const {
  if (draining_) return MakeError(Reason::kDraining, kDraining);
  RETURN_IF_ERROR(CheckTenant(call.tenant));
  RETURN_IF_ERROR(CheckJobName("group", call.group));
  if (call.size == 0 || call.size > limits_.max_size) {
    return MakeError(Reason::kJobInvalid,
                     absl::StrCat("size: ", call.size, " ranks; expected 1 to ", limits_.max_size),
                     {.limit = limits_.max_size, .actual = call.size});
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

// What nobody waits for goes first, the longest untouched of it.
absl::StatusOr<Rendezvous::Group*> Rendezvous::FindOrMake(const Key& key, const Shares::Path& share,
                                                          Later& later) {
  const auto found = groups_.find(key);
  if (found != groups_.end()) return &found->second;
  if (groups_.size() >= limits_.max_groups) {
    const Id number = group_places_.GivesWayTo(share);
    if (number == 0) {
      return MakeError(Reason::kOverloaded,
                       absl::StrCat("all of ", limits_.max_groups, " groups are waited for"));
    }
    const auto displaced = groups_.find(by_number_.at(number));
    if (displaced->second.spare_since == 0 && displaced_ != nullptr) displaced_();
    Erase(displaced->second,
          MakeError(Reason::kOverloaded, absl::StrCat("all of ", limits_.max_groups,
                                                      " groups are waited for, most of them yours: "
                                                      "one of another gets the place")),
          later);
    groups_.erase(displaced);
  }
  Group& group = groups_[key];
  group.number = ++last_id_;
  group.share = share;
  group_places_.Add(group.share, group.number);
  by_number_[group.number] = key;
  return &group;
}

void Rendezvous::Erase(Group& group, const absl::Status& why, Later& later) {
  LetGo(group, why, later);
  group_places_.SetNeeded(group.share, group.number, group.spare_since);
  group_places_.Remove(group.share, group.number);
  by_number_.erase(group.number);
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
  Run(std::move(later));
  if (!id.ok()) done(id.status());
  return id.value_or(0);
}

absl::StatusOr<Rendezvous::Id> Rendezvous::JoinLocked(const Call& call, SteadyTime deadline,
                                                      const OnMet& done, Later& later) {
  RETURN_IF_ERROR(Check(call));
  const Key key(call.tenant, call.group);
  RETURN_IF_ERROR(MakeRoomForCall(call.share, later));
  ASSIGN_OR_RETURN(Group* const group, FindOrMake(key, call.share, later));
  const absl::Status agrees = CheckAgainst(*group, call);
  if (!agrees.ok()) {  // they would wait for a rank that will not come
    for (auto& [rank, waiter] : group->waiting) Dismiss(waiter, agrees, later);
    group->waiting.clear();
    Touch(*group);
    return agrees;
  }
  if (group->epoch != 0 && !group->over) {
    EndLocked(*group, absl::StrCat("rank ", call.rank, " came to a new rendezvous"), later);
  }
  group->size = call.size;
  group->agrees = call.agrees;
  Waiter& waiter = group->waiting[call.rank];
  if (waiter.id != 0) {
    const std::string text = absl::StrCat("rank ", call.rank, " called again: that call counts");
    Dismiss(waiter, MakeError(Reason::kCancelled, text), later);
  }
  const Id id = Enter(key, call.rank, call.share, deadline);
  waiter = {id, deadline, done, call.endpoint};
  const bool all_are_here = group->waiting.size() == group->size;
  if (all_are_here) Meet(*group, later);
  Touch(*group);
  return all_are_here ? 0 : id;
}

void Rendezvous::Dismiss(Waiter& waiter, const absl::StatusOr<std::shared_ptr<const Met>>& answer,
                         Later& later) {
  Leave(waiter.id);
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

Rendezvous::Id Rendezvous::Enter(const Key& group, uint32_t rank, const Shares::Path& share,
                                 SteadyTime deadline) {
  const Id id = ++last_id_;
  call_places_.Add(share, id);
  where_[id] = {group, rank, share, timers_.Schedule(deadline, [this, id] { TimeOut(id); })};
  return id;
}

void Rendezvous::Leave(Id id) {
  const auto where = where_.find(id);
  timers_.Cancel(where->second.timer);
  call_places_.Remove(where->second.share, id);
  where_.erase(where);
}

absl::Status Rendezvous::MakeRoomForCall(const Shares::Path& share, Later& later) {
  if (where_.size() < limits_.max_calls) return absl::OkStatus();
  const Id displaced = call_places_.GivesWayTo(share);
  if (displaced == 0) {
    return MakeError(Reason::kOverloaded, "too many calls wait for groups or watch epochs");
  }
  if (displaced_ != nullptr) displaced_();
  LetCallGo(displaced,
            MakeError(Reason::kOverloaded,
                      "too many calls wait for groups or watch epochs, most of them yours: one of "
                      "another gets the place"),
            later);
  return absl::OkStatus();
}

absl::StatusOr<Rendezvous::Id> Rendezvous::WatchLocked(const Epoch& epoch, SteadyTime deadline,
                                                       const OnFate& done, Later& later) {
  if (draining_) return MakeError(Reason::kDraining, kDraining);
  const Key key(epoch.tenant, epoch.group);
  const auto found = groups_.find(key);
  if (found == groups_.end() || epoch.number > found->second.epoch) {
    return MakeError(Reason::kEpochUnknown,
                     absl::StrCat("group ", epoch.group, " has no epoch ", epoch.number,
                                  "; if the server started anew, so must the group"));
  }
  Group& group = found->second;
  const auto tell = [&](const std::string& why) {
    later.push_back([done, why] { done(Fate{true, why}); });
    return Id{0};
  };
  if (epoch.number < group.epoch) return tell(absl::StrCat("epoch ", group.epoch, " has begun"));
  if (group.over) return tell(group.why);
  RETURN_IF_ERROR(MakeRoomForCall(epoch.share, later));
  const Id id = Enter(key, 0, epoch.share, deadline);
  group.watchers[id] = done;
  Touch(group);
  return id;
}

Rendezvous::Id Rendezvous::Watch(const Epoch& epoch, SteadyTime deadline, const OnFate& done) {
  Later later;
  absl::StatusOr<Id> id;
  {
    const absl::MutexLock lock(&mutex_);
    id = WatchLocked(epoch, deadline, done, later);
  }
  Run(std::move(later));
  if (!id.ok()) done(id.status());
  return id.value_or(0);
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
  Run(std::move(later));
  return absl::OkStatus();
}

void Rendezvous::EndLocked(Group& group, std::string why, Later& later) {
  group.over = true;
  group.why = std::move(why);
  while (!group.watchers.empty()) {
    LetWatcherGo(group, group.watchers.begin()->first, Fate{true, group.why}, later);
  }
  Touch(group);
}

// Who came and could not wait as long as others is not what they wait for, unless all have come.
absl::Status Rendezvous::Missing(const Group& group) const {
  std::vector<uint32_t> missing, left;
  for (uint32_t rank = 0; rank < group.size; ++rank) {
    if (group.waiting.contains(rank)) continue;
    (group.gave_up.contains(rank) ? left : missing).push_back(rank);
  }
  const char* what = missing.empty() ? " gave up before all were here" : " did not come in time";
  return MakeError(Reason::kRanksMissing, absl::StrCat(NameRanks(missing.empty() ? left : missing),
                                                       " of ", group.size, what));
}

// All that are due hear the same: one after another, each would be told that those before it, who
// have given up just now, did not come; and of thousands that takes seconds.
void Rendezvous::LetDueGo(Group& group, Later& later) {
  const absl::Status missing = Missing(group);
  const SteadyTime now = std::chrono::steady_clock::now();
  for (auto at = group.waiting.begin(); at != group.waiting.end();) {
    const auto waiter = at++;
    if (waiter->second.deadline > now) continue;
    Dismiss(waiter->second, missing, later);
    group.gave_up.insert(waiter->first);
    group.waiting.erase(waiter);
  }
}

void Rendezvous::TimeOut(Id id) {
  Later later;
  {
    const absl::MutexLock lock(&mutex_);
    const auto where = where_.find(id);
    if (where == where_.end()) return;  // answered while the timer ran
    Group& group = groups_.at(where->second.group);
    if (group.watchers.contains(id)) {
      LetWatcherGo(group, id, Fate{}, later);
    } else {
      LetDueGo(group, later);
    }
    Touch(group);
  }
  Run(std::move(later));
}

bool Rendezvous::Cancel(Id id) {
  const absl::MutexLock lock(&mutex_);
  if (!where_.contains(id)) return false;
  Later unheard;
  LetCallGo(id, absl::CancelledError(), unheard);
  return true;
}

void Rendezvous::Run(Later later) {
  const bool many = later.size() > kAnswersInline;
  const auto run = [all = std::make_shared<Later>(std::move(later))] {
    for (const std::function<void()>& answer : *all) answer();
  };
  if (!many || !answers_.TrySubmit(run)) run();
}

}  // namespace bucketd
