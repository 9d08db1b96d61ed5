// The servers that the explorer of rank agreement drives (agreement_explorer_test.cc): each life of
// one has a machine of its own, and all of them share a store.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
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

// What pins.h does with the store that servers share.
struct SharedStore {
  std::map<JobName, JobMemory> memories;
  std::map<std::pair<JobName, std::string>, Pin> pins;
  std::map<Digest, PlanReplyPtr> plans;

  absl::Status PutMemory(const JobName& job, const JobMemory& memory) {
    const auto found = memories.find(job);
    if (found != memories.end() && found->second.generation > memory.generation) {
      return absl::AbortedError("another server has begun a later generation");
    }
    memories[job] = memory;
    return absl::OkStatus();
  }
  absl::StatusOr<StandingPin> PutPin(const StoreAgreed& store) {
    const auto key = std::make_pair(store.job, store.name);
    const auto found = pins.find(key);
    if (found != pins.end() && found->second.generation > store.pin.generation) {
      return absl::AbortedError("another server has begun a later generation");
    }
    plans[store.pin.plan_sha256] = store.reply;
    const bool first = found == pins.end() || found->second.generation < store.pin.generation ||
                       found->second.size != store.pin.size;
    if (first) pins[key] = store.pin;
    return StandingPin{pins[key], plans[pins[key].plan_sha256]};
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

// How many jobs and calls a server has room for.
struct Places {
  int64_t jobs = 8;
  int64_t calls = 64;
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
  Life(FakeWorld& world, const Places& places)
      : table({.max_jobs = places.jobs,
               .max_waiting_ranks = places.calls,
               .job_idle = std::chrono::hours(99)},
              world) {}
  JobTable table;
  std::map<uint64_t, Caller> callers;  // that wait
  std::vector<Action> work;            // not begun
  std::vector<Event> mail;             // what became of it
  std::map<uint64_t, ArmTimer> timers;
  std::set<uint64_t> hurried;
  std::set<std::pair<std::string, uint64_t>> over;  // jobs and generations that were told so
  std::map<ScopeKey, StandingVerdict> standing;
  std::map<ScopeKey, std::set<uint32_t>> refused;  // ranks that need no other verdict
  bool draining = false;

  // A job that gave way is not remembered, and begins anew.
  void ForgetWhatGaveWay(SteadyTime now) {
    std::set<std::string> there;
    for (const JobSnapshot& job : table.Snapshots(now, std::nullopt, {}, 100)) there.insert(job.id);
    const auto has_gone = [&](const std::string& id) { return !there.contains(id); };
    std::erase_if(standing, [&](const auto& each) { return has_gone(std::get<0>(each.first)); });
    std::erase_if(refused, [&](const auto& each) { return has_gone(std::get<0>(each.first)); });
    std::erase_if(over, [&](const auto& each) { return has_gone(each.first); });
  }
  // How many calls of each tenant wait, and how many jobs of it are there.
  std::map<std::string, Places> HeldByTenant(SteadyTime now) const {
    std::map<std::string, Places> held{{"", {0, 0}}, {"other", {0, 0}}};
    for (const auto& [call, caller] : callers) ++held[caller.job.tenant].calls;
    for (const JobSnapshot& job : table.Snapshots(now, std::nullopt, {}, 100)) {
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
