// What stands around the servers that the explorer of rank agreement drives: a broker, workers, a
// store and a clock that do what machines ask for late, in any order, or not at all.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/plan_key.h"
#include "tests/server/agreement_lives.h"

namespace bucketd {

class RandomWorld {
 protected:
  explicit RandomWorld(uint64_t seed) : random_(seed) {}
  ~RandomWorld() = default;

  // An event comes to a server.
  virtual void Happen(Life& life, Event event) = 0;

  uint64_t Any(uint64_t below) { return random_() % below; }
  bool Chance(uint64_t percent) { return Any(100) < percent; }
  void Note(std::string line) { trace_.push_back(std::move(line)); }
  // "": nothing is.
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  // Something that a machine asked for is done, or what became of it is brought to the machine.
  void Begin(Life& life) {
    if (life.work.empty()) return;
    const size_t at = Any(life.work.size());
    const Action action = life.work[at];
    if (const auto* ask = std::get_if<AskBroker>(&action); ask != nullptr && BrokerWaits(*ask)) {
      return;
    }
    life.work.erase(life.work.begin() + static_cast<std::ptrdiff_t>(at));
    std::visit([&](const auto& what) { Do(life, what); }, action);
  }
  void Deliver(Life& life) {
    if (life.mail.empty()) return;
    const size_t at = Any(life.mail.size());
    Event event = life.mail[at];
    life.mail.erase(life.mail.begin() + static_cast<std::ptrdiff_t>(at));
    Note(absl::StrCat("event ", event.index()));
    Happen(life, std::move(event));
  }
  // The earliest timer of all; nothing if there is none.
  std::optional<TimerId> FireNext() {
    Life* earliest = nullptr;
    const ArmTimer* next = nullptr;
    for (const std::unique_ptr<Life>& life : lives_) {
      for (const auto& [number, timer] : life->timers) {
        if (next != nullptr && next->at <= timer.at) continue;
        next = &timer;
        earliest = life.get();
      }
    }
    if (next == nullptr) return std::nullopt;
    now_ = std::max(now_, next->at);
    const TimerId timer = next->timer;
    earliest->timers.erase(timer.number);
    Note(absl::StrCat("timer ", timer.scope));
    Happen(*earliest, TimerFired{timer});
    return timer;
  }

  // ---- what machines ask for

  void Take(Life& life, ArmTimer& arm) { life.timers[arm.timer.number] = arm; }
  void Take(Life& life, CancelTimer& cancel) { life.timers.erase(cancel.number); }
  // The broker may have answered just before.
  void Take(Life& life, GiveUpFetch& give_up) {
    std::erase_if(life.work, [&](const Action& action) {
      const auto* ask = std::get_if<AskBroker>(&action);
      return ask != nullptr && ask->fetch.number == give_up.number;
    });
  }
  void Take(Life& life, HurryFetch& hurry) {
    for (const Action& action : life.work) {
      const auto* ask = std::get_if<AskBroker>(&action);
      if (ask == nullptr || ask->fetch.number != hurry.number) continue;
      life.mail.push_back(PlanCame{ask->fetch, MakeError(Reason::kDeadline, "it was computing")});
    }
    GiveUpFetch done{hurry.number};
    Take(life, done);
  }
  template <typename Other>
  void Take(Life& life, Other& action) {
    life.work.push_back(action);
  }

  // ---- and what is done of it

  // The graph was asked for already, and it is not here.
  bool BrokerWaits(const AskBroker& ask) {
    const std::string& key = ask.request->graph_key;
    return silent_ || (ask.request->graph == nullptr && !world_.HasGraph(key) && Chance(60));
  }

  void Do(Life& life, const AskBroker& ask) { life.mail.push_back(PlanCame{ask.fetch, Plan(ask)}); }
  absl::StatusOr<PlanAnswer> Plan(const AskBroker& ask) {
    if (Chance(4)) return MakeError(Reason::kOverloaded, "full");
    if (Chance(4)) return MakeError(Reason::kPlanImpossible, "no");
    const std::string& key = ask.request->graph_key;
    if (ask.request->graph != nullptr) {
      ask.request->graph.reset();
      if (Chance(20)) return MakeError(Reason::kDigestMismatch, "another graph");
      world_.graphs.insert(key);
    }
    if (!world_.HasGraph(key)) return PlanAnswer{PlanOutcome::kGraphRequired, nullptr, 10, {}};
    // No two computations give the same: what is the same has been agreed on.
    return FakePlan(absl::StrCat("plan ", ++computed_));
  }
  void Do(Life& life, const LoadScope& load) {
    if (Fails()) {
      life.mail.push_back(ScopeLoaded{load.scope, Busy(), Busy()});
      return;
    }
    absl::StatusOr<std::optional<JobMemory>> memory = std::optional<JobMemory>();
    const auto known = store_.memories.find(load.job);
    if (known != store_.memories.end()) memory = std::make_optional(known->second);
    life.mail.push_back(
        ScopeLoaded{load.scope, std::move(memory), store_.PinOf(load.job, load.name)});
  }
  void Do(Life& life, const LoadPinAgain& load) {
    absl::StatusOr<std::optional<Pin>> pin = Busy();
    if (!Fails()) pin = store_.PinOf(load.job, load.name);
    life.mail.push_back(PinLoadedAgain{load.scope, std::move(pin)});
  }
  void Do(Life& life, const LoadPinnedPlan& load) {
    absl::StatusOr<PlanReplyPtr> reply = Busy();
    if (!Fails()) reply = store_.plans[load.pin.plan_sha256];
    life.mail.push_back(PinnedPlanCame{load.fetch, std::move(reply)});
  }
  void Do(Life& life, const StoreUnplanned& store) {
    UnplannedStored stored{store.job, store.generation};
    const absl::StatusOr<JobMemory> memory = life.table.MemoryOf(store.job, store.generation);
    if (memory.ok() && !Fails()) {
      const absl::StatusOr<JobMemory> stands = store_.PutMemory(store.job, *memory);
      if (stands.ok() && !Holds(*memory, *stands)) stored.elsewhere = *stands;
    } else {
      unheard_.insert({store.job.second, store.generation});
    }
    life.mail.push_back(std::move(stored));
  }
  void Do(Life& life, const StoreAgreed& store) {
    std::optional<JobMemory> elsewhere;
    absl::StatusOr<StandingPin> standing = Write(life, store, elsewhere);
    life.mail.push_back(AgreedStored{store.scope, std::move(standing), std::move(elsewhere)});
  }
  absl::StatusOr<StandingPin> Write(Life& life, const StoreAgreed& store,
                                    std::optional<JobMemory>& elsewhere) {
    ASSIGN_OR_RETURN(JobMemory memory,
                     life.table.MemoryOf(store.job, store.pin.generation, store.scope));
    if (Fails()) {
      // Agreed in this process alone: nothing can be promised beyond it.
      unpinned_.insert({store.job.second, store.pin.generation, store.name});
      return Chance(20) ? MakeError(Reason::kQuotaUsedUp, "pins") : Busy();
    }
    // Before its first plan is kept a generation may still be left without any.
    if (memory.last_scope.empty() && world_.disabled.has_value()) {
      JobMemory unplanned = memory;
      unplanned.unplanned = world_.disabled;
      store_.PutMemory(store.job, unplanned).IgnoreError();
    }
    memory.last_scope = store.name;
    const std::optional<Pin> before = store_.PinOf(store.job, store.name);
    ASSIGN_OR_RETURN(StandingPin standing, store_.Agree(store, memory, elsewhere));
    const bool is_new = !before.has_value() || before->plan_sha256 != standing.pin.plan_sha256;
    if (is_new && !store.again) CheckProfile(store);
    return standing;
  }
  // A plan that this generation has made.
  void CheckProfile(const StoreAgreed& store) {
    const JobMemory* memory = store_.MemoryOf(store.job, store.pin.generation);
    if (memory == nullptr ||
        FixedBy(*memory, store.pin.profile_as_asked) != ProfileIdOf(store.pin.plan_key)) {
      Wrong("a plan is kept that was made with another profile than its generation's");
    }
  }
  void Do(Life& life, const WeighPlans& weigh) {
    absl::StatusOr<ReplanVerdict> verdict = ReplanVerdict{};
    verdict->replace = Chance(50);
    if (Fails()) verdict = Busy();
    life.mail.push_back(PlansWeighed{weigh.fetch, weigh.fresh, std::move(verdict)});
  }
  void Do(Life& life, const CompareGraphs& compare) {
    life.mail.push_back(
        DifferenceSought{compare.scope, compare.number, Chance(50) ? "node 7" : "", "7"});
  }
  void Do(Life& life, const DecodeGraph& decode) {
    if (Chance(80)) world_.graphs.insert(decode.graph_key);
    life.mail.push_back(GraphDecoded{decode.scope, decode.signature});
  }
  void Do(Life&, const OfferGraph& offer) { world_.graphs.insert(offer.graph_key); }
  template <typename Other>
  void Do(Life&, const Other&) {}

  bool Fails() { return failing_ && Chance(away_ ? 90 : 10); }
  static absl::Status Busy() { return absl::UnavailableError("the store is away"); }

  std::mt19937_64 random_;
  SteadyTime now_{std::chrono::hours(1)};
  FakeWorld world_;
  SharedStore store_;
  std::vector<std::unique_ptr<Life>> lives_;
  bool failing_ = false;  // the store, now and then
  bool away_ = false;     // for a while
  bool silent_ = false;   // the broker
  int computed_ = 0;
  std::set<ScopeKey> unpinned_;
  std::set<std::pair<std::string, uint64_t>> unheard_;  // unplanned, and the store may not know
  std::vector<std::string> trace_;
  std::string wrong_;
};

}  // namespace bucketd
