// The servers that the explorer of rank agreement drives (agreement_explorer_test.cc): each life of
// one has a machine of its own, and all of them share a store.
#pragma once

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
struct Standing {
  std::string verdict;
  std::set<uint32_t> heard;
};

// One life of a server: its machine, and what it has been asked to do.
struct Life {
  explicit Life(FakeWorld& world)
      : table({.max_jobs = 8, .max_waiting_ranks = 64, .job_idle = std::chrono::hours(99)}, world) {
  }
  JobTable table;
  std::map<uint64_t, Caller> callers;  // that wait
  std::vector<Action> work;            // not begun
  std::vector<Event> mail;             // what became of it
  std::map<uint64_t, ArmTimer> timers;
  std::set<uint64_t> hurried;
  std::set<std::pair<std::string, uint64_t>> over;  // jobs and generations that were told so
  std::map<ScopeKey, Standing> standing;
  std::map<ScopeKey, std::set<uint32_t>> refused;  // ranks that need no other verdict
  bool draining = false;

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
    if (begins) standing.try_emplace(key, Standing{said, refused[key]});
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
