// The servers that the explorer of rank agreement drives (agreement_explorer_test.cc): each life of
// one has a machine of its own, and all of them share a store.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "tests/server/machine_world.h"

namespace bucketd {

using ScopeKey = std::tuple<std::string, uint64_t, std::string>;  // job, generation, scope

inline std::string FixedBy(const JobMemory& memory, const std::string& asked) {
  const std::map<std::string, std::string> fixed(memory.profiles.begin(), memory.profiles.end());
  const auto found = fixed.find(asked);
  return found == fixed.end() ? "" : found->second;
}
// Whether what is said here of a generation is so, though more may have been said.
inline bool Holds(const JobMemory& here, const JobMemory& stands) {
  return here.unplanned.has_value() == stands.unplanned.has_value() &&
         std::all_of(here.profiles.begin(), here.profiles.end(), [&](const auto& profile) {
           return FixedBy(stands, profile.first) == profile.second;
         });
}

// What pins.h does with the store that servers share.
struct SharedStore {
  std::map<JobName, JobMemory> memories;
  std::map<std::pair<JobName, std::string>, Pin> pins;
  std::map<Digest, PlanReplyPtr> plans;

  std::optional<Pin> PinOf(const JobName& job, const std::string& scope) const {
    const auto found = pins.find({job, scope});
    return found == pins.end() ? std::nullopt : std::make_optional(found->second);
  }
  // Null: nothing is kept of this generation.
  const JobMemory* MemoryOf(const JobName& job, uint64_t generation) const {
    const auto found = memories.find(job);
    return found != memories.end() && found->second.generation == generation ? &found->second
                                                                             : nullptr;
  }
  // What stands then: of one generation the first word, and of later ones what that leaves open.
  absl::StatusOr<JobMemory> PutMemory(const JobName& job, const JobMemory& memory) {
    JobMemory& stands = memories.try_emplace(job, memory).first->second;
    if (stands.generation > memory.generation) return LaterGeneration();
    if (stands.generation < memory.generation) stands = memory;
    for (const auto& profile : memory.profiles) {
      if (FixedBy(stands, profile.first).empty()) stands.profiles.push_back(profile);
    }
    if (!memory.last_scope.empty()) stands.last_scope = memory.last_scope;
    return stands;
  }
  // As AgreedStored has it.
  absl::StatusOr<StandingPin> Agree(const StoreAgreed& store, const JobMemory& memory,
                                    std::optional<JobMemory>& elsewhere) {
    const JobMemory* kept = MemoryOf(store.job, memory.generation);
    const std::optional<Pin> pin = PinOf(store.job, store.name);
    const bool stands =
        pin.has_value() && pin->generation == store.pin.generation && pin->size == store.pin.size;
    if (kept != nullptr && !Holds(memory, *kept)) {
      elsewhere = *kept;
      if (!stands) return absl::CancelledError("made otherwise than this generation is");
    } else if (!PutMemory(store.job, memory).ok() ||
               (pin.has_value() && pin->generation > store.pin.generation)) {
      return LaterGeneration();
    } else if (!stands) {
      pins[{store.job, store.name}] = store.pin;
      plans[store.pin.plan_sha256] = store.reply;
    }
    const Pin& holds = pins[{store.job, store.name}];
    return StandingPin{holds, plans[holds.plan_sha256]};
  }
  static absl::Status LaterGeneration() {
    return absl::AbortedError("another server has begun a later generation");
  }
};

struct Caller {
  JobCall job;
  Digest signature{};
  SteadyTime deadline;
};

// A verdict that is repeated until every rank has heard it.
struct StandingVerdict {
  std::string verdict;
  std::set<uint32_t> heard;
};

// What a scope that a server remembers has agreed on.
struct ToldPlan {
  Digest plan{};
  bool awaits_pin = false;       // the store was away
  SteadyTime::duration stood{};  // how long the server has stood still since then
};

// A plan that is being kept.
struct Storing {
  ScopeKey key;
  Digest plan{};
  SteadyTime since;  // all ranks are here
};

// What another server was first to say of a generation.
struct Otherwise {
  JobName job;
  JobMemory memory;
};

// How many jobs and calls a tenant has.
struct Places {
  int64_t jobs = 0;
  int64_t calls = 0;
};

// Jobs a and b are of one tenant, the others of another one: so each is known by its id.
inline JobName NamedJob(const std::string& id) {
  return JobName(id == "a" || id == "b" ? "" : "other", id);
}

inline std::string TenantOfCall(const Event& event) {
  if (const auto* came = std::get_if<RankCame>(&event)) return came->job.tenant;
  const auto* refused = std::get_if<RankRefused>(&event);
  return refused == nullptr ? "" : refused->job.tenant;
}

// Jobs with ranks that waited, and ranks.
inline int GaveWay(const Actions& actions) {
  return static_cast<int>(
      std::count_if(actions.counts.begin(), actions.counts.end(), [](const Count& count) {
        const auto* tally = std::get_if<Tally>(&count);
        return tally != nullptr &&
               (*tally == Tally::kJobDisplaced || *tally == Tally::kRankDisplaced);
      }));
}

// One life of a server: its machine, and what it has been asked to do.
struct Life {
  Life(FakeWorld& world, const AgreementLimits& bounds, SteadyTime now)
      : limits(bounds), table(bounds, world), last_event(now) {}
  const AgreementLimits limits;
  JobTable table;
  std::map<uint64_t, Caller> callers;  // that wait
  std::vector<Action> work;            // not begun
  std::vector<Event> mail;             // what became of it
  std::map<uint64_t, ArmTimer> timers;
  std::set<std::pair<std::string, uint64_t>> over;  // jobs and generations that were told so
  std::map<ScopeKey, StandingVerdict> standing;
  std::map<ScopeKey, std::set<uint32_t>> refused;  // ranks that need no other verdict
  std::map<ScopeKey, ToldPlan> plans;
  std::map<ScopeId, Storing> storing;
  std::map<std::string, SteadyTime> used;  // jobs, when a rank last came to wait
  SteadyTime last_event, stopped = SteadyTime::min();
  bool draining = false;
  int swept = 0, doubted = 0, kept_late = 0;

  // Nothing happened for so long though a scope was there: the process stood still.
  void NoticeAStop(SteadyTime now) {
    const SteadyTime::duration stood = now - std::exchange(last_event, now);
    if (limits.taken_over_after.count() == 0 || table.scopes() == 0) return;
    if (stood > Noticed()) stopped = now;
    for (auto& [key, told] : plans) {
      if (!told.awaits_pin) continue;
      told.stood = std::max(told.stood, stood);
      doubted += stood >= limits.taken_over_after ? 1 : 0;
    }
  }
  // A stop that is shorter may not be.
  SteadyTime::duration Noticed() const {
    return std::min<SteadyTime::duration>(std::chrono::seconds(2), limits.taken_over_after / 2);
  }
  // The plan that is being kept, if the scope is still there.
  const Storing* StoringOf(const AgreedStored& stored) const {
    const auto found = storing.find(stored.scope);
    return found == storing.end() || table.ShareOf(stored.scope).empty() ? nullptr : &found->second;
  }
  // What ranks run with without a pin has been tried again.
  void TriedAgain(const AgreedStored& stored) {
    const Storing* what = StoringOf(stored);
    const auto told = what == nullptr ? plans.end() : plans.find(what->key);
    if (told == plans.end() || !told->second.awaits_pin) return;
    const absl::Status& status = stored.standing.status();
    if (!status.ok() && !absl::IsAborted(status) && !absl::IsCancelled(status)) return;
    const bool is_it = status.ok() && stored.standing->pin.plan_sha256 == told->second.plan;
    kept_late += is_it ? 1 : 0;
    // Then the scope may end.
    const bool may_end = !is_it && told->second.stood > Noticed();
    told->second = {told->second.plan, false, {}};
    if (may_end) plans.erase(told);
  }
  // "" or what is wrong with a plan that is told.
  std::string Tells(const ScopeKey& key, const Digest& plan, bool awaits_pin) {
    const ToldPlan& told = plans.try_emplace(key, ToldPlan{plan, awaits_pin, {}}).first->second;
    if (told.plan != plan) return "a scope has another plan than the one that it has told";
    const bool elsewhere = told.awaits_pin && limits.taken_over_after.count() != 0 &&
                           told.stood >= limits.taken_over_after;
    return elsewhere ? "a plan is told though others may have taken its job over" : "";
  }

  // What an event brings of it, where this server is in that generation and said otherwise.
  std::optional<Otherwise> OtherwiseOf(const Event& event) const {
    if (const auto* stored = std::get_if<AgreedStored>(&event)) {
      const Storing* what = StoringOf(*stored);
      if (what == nullptr || !stored->elsewhere.has_value()) return std::nullopt;
      return Otherwise{NamedJob(std::get<0>(what->key)), *stored->elsewhere};
    }
    const auto* unplanned = std::get_if<UnplannedStored>(&event);
    if (unplanned == nullptr || !unplanned->elsewhere.has_value()) return std::nullopt;
    const auto here = table.MemoryOf(unplanned->job, unplanned->generation);
    if (!here.ok() || !here->unplanned.has_value()) return std::nullopt;
    return Otherwise{unplanned->job, *unplanned->elsewhere};
  }
  // "" or what goes on as if nobody had been first.
  std::string Disobeys(const Otherwise& first, SteadyTime now) const {
    const auto here = table.MemoryOf(first.job, first.memory.generation);
    if (here.ok() && !Holds(*here, first.memory)) return "another server was first, and in vain";
    for (const JobSnapshot& job : table.Snapshots(now, {}, 100)) {
      if (JobName(job.tenant, job.id) != first.job) continue;
      for (const ScopeSnapshot& scope : job.scopes) {
        const bool stands = scope.stage == "agreed" ||
                            (scope.stage == "failed" && !first.memory.unplanned.has_value());
        if (!stands) return absl::StrCat("scope ", scope.name, " goes on as it began");
      }
    }
    return "";
  }

  // Of a job that is not there any more nothing is remembered, of an earlier generation no plan.
  // "" or what should still be there; `in_time`: jobs go because nobody uses them; `alone`: what
  // may have been agreed on without the store, though nobody waits to hear it.
  std::string ForgetWhatIsGone(SteadyTime now, bool in_time, const Storing* alone) {
    std::map<std::string, uint64_t> there;  // and the generation
    std::set<ScopeKey> agreed;
    for (const JobSnapshot& job : table.Snapshots(now, {}, 100)) {
      there.emplace(job.id, job.generation);
      for (const ScopeSnapshot& scope : job.scopes) {
        if (scope.stage == "agreed") agreed.emplace(job.id, job.generation, scope.name);
      }
    }
    if (alone != nullptr && agreed.contains(alone->key)) {
      plans.try_emplace(alone->key, ToldPlan{alone->plan, true, {}});
    }
    std::string wrong;
    const auto has_gone = [&](const std::string& id) { return !there.contains(id); };
    std::erase_if(standing, [&](const auto& each) { return has_gone(std::get<0>(each.first)); });
    std::erase_if(refused, [&](const auto& each) { return has_gone(std::get<0>(each.first)); });
    std::erase_if(over, [&](const auto& each) { return has_gone(each.first); });
    std::erase_if(plans, [&](const auto& each) {
      const auto& [id, generation, scope] = each.first;
      return has_gone(id) || there[id] != generation;
    });
    for (const auto& [key, told] : plans) {
      if (!agreed.contains(key)) wrong = "a scope that has agreed is forgotten";
    }
    std::erase_if(used, [&](const auto& each) {
      if (!has_gone(each.first)) return false;
      swept += in_time ? 1 : 0;
      if (in_time && now - each.second < limits.job_idle) wrong = "a job is forgotten too early";
      return true;
    });
    return wrong;
  }
  // How many calls of each tenant wait, and how many jobs of it are there.
  std::map<std::string, Places> HeldByTenant(SteadyTime now) const {
    std::map<std::string, Places> held{{"", {0, 0}}, {"other", {0, 0}}};
    for (const auto& [call, caller] : callers) ++held[caller.job.tenant].calls;
    for (const JobSnapshot& job : table.Snapshots(now, {}, 100)) {
      ++held[job.tenant].jobs;
    }
    return held;
  }

  // A call of `tenant` has come, when `before` was there: that call itself and no job of its. Who
  // gave way had more than the newcomer has then; who found no room had as much as the other. "" or
  // what is wrong.
  std::string Unfair(const std::string& tenant, const std::map<std::string, Places>& before,
                     const Actions& actions, SteadyTime now) const {
    const std::string other = tenant.empty() ? "other" : "";
    const Places theirs = before.at(other), own = before.at(tenant);
    const bool has_more_jobs = theirs.jobs > own.jobs + 1,
               has_more_calls = theirs.calls > own.calls;
    if (HeldByTenant(now).at(other).jobs < theirs.jobs && theirs.jobs <= own.jobs) {
      return "a job gave way to a tenant that has as many";
    }
    for (const Count& count : actions.counts) {
      const auto* tally = std::get_if<Tally>(&count);
      if (tally == nullptr) continue;
      if (*tally == Tally::kJobDisplaced && !has_more_jobs) return "a job gave way to who has more";
      if (*tally == Tally::kRankDisplaced && !has_more_calls)
        return "a call gave way to who has more";
    }
    for (const auto& [call, answer] : actions.answers) {
      const absl::string_view text = answer.status().message();
      if (text == "too many jobs have ranks that wait" && has_more_jobs) {
        return "one tenant keeps jobs of another out";
      }
      if (text == "too many ranks wait for each other" && has_more_calls) {
        return "one tenant keeps ranks of another out";
      }
    }
    return "";
  }

  // A failed scope has one verdict for all of its ranks, until the last of them was told. "" or
  // what is wrong with this one; `falls`: the event that is being handled ended a scope.
  std::string Repeated(CallId call, const JobCall& job, const absl::StatusOr<PlanAnswer>& answer,
                       bool falls) {
    const std::string reason = answer.ok() ? "" : ReasonOf(answer.status());
    // What is said of the whole job, or of the whole server, counts more.
    if (reason == "GENERATION_OVER" || draining) return "";
    if (answer.ok() && answer->outcome == PlanOutcome::kUnplanned) return "";
    const std::string said = answer.ok() ? "an answer" : std::string(answer.status().message());
    const ScopeKey key{job.id, job.generation, job.scope};
    const bool begins = falls && (reason == "RANKS_DIFFER" || reason == "RANKS_MISSING");
    if (begins) standing.try_emplace(key, StandingVerdict{said, refused[key]});
    if (absl::StrContains(said, " was refused: ")) {  // not: a rank that waits, by another call
      refused[key].insert(job.ranks.begin(), job.ranks.end());
    }
    const auto stands = standing.find(key);
    if (stands == standing.end()) return "";
    stands->second.heard.insert(job.ranks.begin(), job.ranks.end());
    if (said == stands->second.verdict) return "";
    return absl::StrCat("call ", call, " hears ", said,
                        ", but its scope has failed: ", stands->second.verdict);
  }
};

}  // namespace bucketd
