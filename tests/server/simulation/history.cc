#include "tests/server/simulation/history.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bucketd::simulation {
namespace {

// A cut wire may keep who presents a rank from taking it back, and a process that was stopped has
// to find out. Looks are five seconds apart.
constexpr int kLooks = 8;
// From when the store did not say who has a plan's lease until its graph is here and a slot is
// free.
constexpr std::chrono::seconds kTrouble{60};
constexpr size_t kKept = 40;  // events of a job, for who reads a failure

int NumberOf(const Process* process) { return process == nullptr ? -1 : process->number; }

std::string Seconds(Time time) {
  return absl::StrFormat("%.6f", std::chrono::duration<double>(time).count());
}

}  // namespace

void History::Mix(uint64_t value) {
  digest_ = (digest_ ^ value) * 0x9e3779b97f4a7c15;
  digest_ ^= digest_ >> 29;
}

void History::Note(const char* what, const Subject& about, uint64_t value) {
  ++events_;
  const Event event{threads_.now(), what, about, NumberOf(threads_.process()), value};
  Mix(static_cast<uint64_t>(event.at.count()));
  for (const char* c = what; *c != '\0'; ++c) Mix(static_cast<uint64_t>(*c));
  Mix((static_cast<uint64_t>(about.job) << 32) ^ static_cast<uint64_t>(about.rank));
  Mix((about.generation << 8) ^ static_cast<uint64_t>(about.scope));
  Mix((static_cast<uint64_t>(event.process) << 48) ^ value);
  if (traced_ >= 0 && (about.job == traced_ || about.job < 0)) {
    std::printf("%s\n", InWords(event).c_str());
  }
  std::deque<Event>& last = LastOf(about.job);
  last.push_back(event);
  if (last.size() > (about.job < 0 ? 4 * kKept : kKept)) last.pop_front();
}

std::string History::InWords(const Event& event) {
  std::string words = absl::StrCat(Seconds(event.at), " s ");
  absl::StrAppend(&words, event.process < 0 ? "world" : absl::StrCat("process ", event.process));
  absl::StrAppend(&words, ": ", event.what);
  if (event.about.job >= 0) {
    absl::StrAppend(&words, ", job ", event.about.job, " generation ", event.about.generation,
                    " scope ", event.about.scope);
    if (event.about.rank >= 0) absl::StrAppend(&words, " rank ", event.about.rank);
  }
  if (event.value != 0) absl::StrAppend(&words, " (", event.value, ")");
  return words;
}

void History::Wrong(const Subject& about, const std::string& what) {
  if (!wrong_.empty()) return;
  wrong_ = absl::StrCat(Seconds(threads_.now()), " s: ", what);
  for (const int job : {-1, about.job}) {
    if (job < 0 && about.job >= 0) absl::StrAppend(&wrong_, "\nthe world's last events");
    if (job >= 0) absl::StrAppend(&wrong_, "\nthe last events of job ", job);
    for (const Event& event : LastOf(job)) absl::StrAppend(&wrong_, "\n  ", InWords(event));
    if (job == about.job) break;
  }
}

// ---- ranks

void History::Asked(const Subject& rank) {
  began_.emplace(Generation(rank.job, rank.generation), threads_.now());
}

void History::Agreed(const Subject& rank, const std::string& value) {
  const bool is_plan = value != "unplanned";
  ++(is_plan ? plans_ : unplanned_);
  const auto stands =
      agreed_.emplace(std::tuple(rank.job, rank.generation, rank.scope), value).first;
  // Without its store a replica agrees without a pin. Another one that has the job later knows
  // nothing of that, and where planning is off by then who asks again is told so.
  const bool knows = !StoreFailedSince(began_.at(Generation(rank.job, rank.generation))) ||
                     (is_plan && stands->second != "unplanned");
  if (stands->second != value && knows) {
    Wrong(rank, absl::StrCat("two plans: rank ", rank.rank, " of job ", rank.job, " generation ",
                             rank.generation, " scope ", rank.scope, " was given ", value,
                             ", others ", stands->second));
  }
  const Time began = began_.at(Generation(rank.job, rank.generation));
  if (is_plan && off_since_ < began && !StoreFailedSince(began)) {
    Wrong(rank, absl::StrCat("job ", rank.job, " generation ", rank.generation, " began at ",
                             Seconds(began), " s and has a plan, though planning is off since ",
                             Seconds(off_since_), " s"));
  }
}

void History::Decided(const Subject& scope, const Process& where, const std::string& value) {
  const auto stands =
      decided_.emplace(std::tuple(where.number, scope.job, scope.generation, scope.scope), value)
          .first;
  if (stands->second == value) return;
  Wrong(scope, absl::StrCat("process ", where.number, " answers job ", scope.job, " generation ",
                            scope.generation, " scope ", scope.scope, " with ", value,
                            " and before with ", stands->second));
}

std::string History::AgreedOf(const Subject& scope) const {
  const auto found = agreed_.find(std::tuple(scope.job, scope.generation, scope.scope));
  return found == agreed_.end() ? "" : found->second;
}

// ---- where calls wait

void History::Present(uint64_t call, const Subject& rank, const Process& where) {
  Note("waits for the others", rank);
  Presence& presence = present_[call];
  presence.rank = rank;
  presence.where.push_back(&where);
}

void History::Absent(uint64_t call, const Process& where) {
  const auto found = present_.find(call);
  if (found == present_.end()) return;
  std::vector<const Process*>& all = found->second.where;
  const auto here = std::find(all.begin(), all.end(), &where);
  if (here != all.end()) all.erase(here);
  if (all.empty()) present_.erase(found);
}

void History::CheckPresence() {
  std::unordered_map<uint64_t, int> before = std::exchange(suspects_, {});
  for (auto& [call, presence] : present_) {
    std::vector<const Process*>& where = presence.where;
    std::erase_if(where, [](const Process* process) { return process->dead; });
    const bool has_ended = call < ended_.size() && ended_[call];
    if (where.empty() || (where.size() == 1 && !has_ended)) continue;
    const auto is_stopped = [&](const Process* process) {
      return process->paused_until > threads_.now();
    };
    if (std::any_of(where.begin(), where.end(), is_stopped)) continue;
    if (++(suspects_[call] = before[call]) < kLooks) continue;
    const Subject& rank = presence.rank;
    Wrong(rank,
          absl::StrCat("rank ", rank.rank, " of job ", rank.job, " generation ", rank.generation,
                       " scope ", rank.scope, " is presented at process ", where[0]->number,
                       has_ended ? ", though its call has ended"
                                 : absl::StrCat(" and at process ", where[1]->number)));
  }
}

// ---- the store

void History::Leased(const std::string& key, const std::string& holder, uint64_t incarnation) {
  leases_[key] = {holder, incarnation};
}

void History::Unleased(const std::string& key) { leases_.erase(key); }

void History::Holds(const Subject& about, const std::string& key, const std::string& holder,
                    uint64_t incarnation) {
  const auto stands = leases_.find(key);
  if (stands != leases_.end() && stands->second.address == holder &&
      stands->second.incarnation == incarnation) {
    return;
  }
  Wrong(about, absl::StrCat(holder, " takes itself for the holder of ", key, ", which ",
                            stands == leases_.end() ? "nobody has" : stands->second.address,
                            stands == leases_.end() ? "" : " has"));
}

void History::Pinned(const std::string& key, uint64_t generation, const std::string& sha256) {
  Pin& pin = pins_[key];
  if (pin.generation == generation && !pin.sha256.empty() && pin.sha256 != sha256) {
    Wrong({}, absl::StrCat("the pin of ", key, " in generation ", generation, " was ", pin.sha256,
                           " and is now ", sha256));
  } else if (pin.generation > generation) {
    Wrong({}, absl::StrCat("the pin of ", key, " was of generation ", pin.generation,
                           " and is now of ", generation));
  }
  pin = {generation, sha256};
}

// ---- computations

bool History::WasInTrouble(const Process& process, Time since) const {
  const auto failed = failed_of_.find(&process);
  return process.dead || process.paused_until > since ||
         (failed != failed_of_.end() && failed->second >= since);
}

void History::Computes(const std::string& key, const Process& where, bool leased) {
  ++computations_;
  Note(leased ? "computes, with the lease" : "computes, without a lease", {});
  const std::string who = absl::StrCat("process ", where.number);
  if (!running_.insert({key, &where}).second) {
    Wrong({}, absl::StrCat(who, " computes twice at once: ", key));
  }
  if (!leased) {
    ++unleased_;
    if (!WasInTrouble(where, threads_.now() - kTrouble)) {
      Wrong({}, absl::StrCat(who, " computes without a lease, though its store was there: ", key));
    }
    return;
  }
  Computation& last = computing_[key];
  const bool may = last.where == nullptr || WasInTrouble(*last.where, last.began) ||
                   WasInTrouble(where, last.began);
  if (!may) {
    Wrong({}, absl::StrCat(who, " computes what process ", last.where->number,
                           last.saved ? " has computed and saved: " : " is computing: ", key));
  }
  last = {&where, threads_.now(), false};
}

void History::Saved(const std::string& key) {
  const auto found = computing_.find(key);
  if (found != computing_.end()) found->second.saved = true;
}

}  // namespace bucketd::simulation
