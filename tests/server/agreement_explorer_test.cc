// Random schedules of rank agreement: ranks come, come twice, differ, leave and bring graphs;
// plans, pins and graphs come late, in any order, or not at all; generations begin, servers drain,
// restart and share a store. After every event the invariants of server/DESIGN.md are checked.
//
// BUCKETD_SCHEDULES and BUCKETD_SEED run more of them, or one again.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "tests/server/agreement_lives.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;

constexpr int kSteps = 90;
constexpr uint32_t kRanks = 3;                // of every scope
constexpr milliseconds kLateness{1000};       // of an answer beyond its caller's deadline
constexpr uint64_t kFarGeneration = 1 << 20;  // no count of restarts gets there

class Explorer {
 public:
  explicit Explorer(uint64_t seed) : random_(seed) {
    // In some there is no room for all.
    crowded_ = Chance(25);
    if (crowded_ && Chance(60)) places_.jobs = static_cast<int64_t>(1 + Any(3));
    if (crowded_ && Chance(60)) places_.calls = static_cast<int64_t>(1 + Any(8));
    lives_.push_back(std::make_unique<Life>(world_, places_));
    if (Chance(40)) lives_.push_back(std::make_unique<Life>(world_, places_));
    differing_ = Chance(30);
    failing_ = Chance(30);
  }

  // "" or what was violated, with everything that led there.
  std::string Run() {
    for (int step = 0; step < kSteps && wrong_.empty(); ++step) Step();
    Quiesce();
    return wrong_.empty() ? "" : absl::StrCat(wrong_, "\n", absl::StrJoin(trace_, "\n"));
  }
  int plans() const { return plans_told_; }
  int gave_way() const { return gave_way_; }

 private:
  uint64_t Any(uint64_t below) { return random_() % below; }
  bool Chance(uint64_t percent) { return Any(100) < percent; }
  void Note(std::string line) { trace_.push_back(std::move(line)); }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  void Step() {
    Life& life = *lives_[Any(lives_.size())];
    const uint64_t dice = Any(100);
    if (dice < 35) {
      Come(life);
    } else if (dice < 60) {
      Begin(life);
    } else if (dice < 83) {
      Deliver(life);
    } else if (dice < 88) {
      FireNext();
    } else if (dice < 92) {
      if (!life.callers.empty()) Leave(life);
    } else {
      Disturb(life);
    }
  }

  void Disturb(Life& life) {
    switch (Any(12)) {
      case 0:
        ++generation_;
        Note("a generation begins");
        break;
      case 1:
        latest_ = latest_ % 3 + 1;
        break;
      case 2:
        world_.graphs.clear();
        break;
      case 3:
        world_.disabled = world_.disabled.has_value() ? std::nullopt : std::make_optional("off");
        break;
      case 4:
        if (!Chance(30)) break;
        Note("drain");
        life.draining = true;
        Happen(life, DrainBegan{});
        break;
      case 5:
      case 6:
        Restart(life);
        break;
      case 7: {
        Note("release");
        const JobName job = NamedJob(AnyJob());
        // What was agreed on is forgotten with the job; the next generation begins another one.
        store_.memories.erase(job);
        std::erase_if(store_.pins, [&](const auto& pin) { return pin.first.first == job; });
        released_[job.second] = generation_++;
        for (std::unique_ptr<Life>& each : lives_) {
          Happen(*each, JobReleased{job, true});
          const auto of_job = [&](const auto& entry) {
            return std::get<0>(entry.first) == job.second;
          };
          std::erase_if(each->standing, of_job);
          std::erase_if(each->refused, of_job);
        }
        break;
      }
      default:
        world_.graphs.insert(FakeRequest(static_cast<int>(1 + Any(3)))->graph_key);
    }
  }

  // Whoever waited comes again; what was being done is lost, or was done just so.
  void Restart(Life& life) {
    Note("restart");
    for (std::unique_ptr<Life>& each : lives_) {
      if (each.get() == &life) {
        each = std::make_unique<Life>(world_, places_);
        return;
      }
    }
  }

  std::string AnyJob() {
    if (Chance(crowded_ ? 50 : 85)) return "a";
    return Chance(30) ? "b" : Chance(70) ? "c" : "d";
  }

  void Come(Life& life) {
    Caller caller;
    const JobName name = NamedJob(AnyJob());
    caller.job = {.tenant = name.first,
                  .id = name.second,
                  .generation = generation_ - (generation_ > 1 && Chance(10) ? 1 : 0),
                  .scope = Chance(75) ? "fw" : "bw",
                  .ranks = {static_cast<uint32_t>(Any(kRanks))},
                  .size = kRanks,
                  .fresh = false,
                  .share = ShareOf(name.first, "host", true)};
    if (Chance(15)) caller.job.ranks = {0, 1};
    if (Chance(3)) caller.job.generation = kFarGeneration << Any(20);
    const bool differs = differing_ && Chance(15);
    auto request = FakeRequest(differs ? 2 : 1, differs && Chance(30) ? 2 : 1, latest_);
    if (Chance(15)) request->graph = std::make_unique<InlineGraph>();
    caller.deadline = now_ + milliseconds(2000 + Any(20'000));
    const CallId call = life.table.NewCall();
    Note(absl::StrCat("call ", call, ": ", caller.job.id, " generation ", caller.job.generation,
                      " ", caller.job.scope, " rank ", caller.job.ranks[0],
                      differs ? " differs" : ""));
    if (Chance(2)) {
      life.callers.emplace(call, caller);
      Happen(life, RankRefused{call, caller.job, MakeError(Reason::kOptionsInvalid, "none such")});
      return;
    }
    RankCame came = Came(call, caller.job, std::move(request), caller.deadline);
    caller.signature = came.signature_id;
    life.callers.emplace(call, caller);
    Happen(life, std::move(came));
  }

  void Leave(Life& life) {
    auto caller = life.callers.begin();
    std::advance(caller, static_cast<std::ptrdiff_t>(Any(life.callers.size())));
    Note(absl::StrCat("call ", caller->first, " leaves"));
    Happen(life, CallerLeft{caller->first});
  }

  // ---- what the machine asked for, done in any order

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
    life.mail.push_back(ScopeLoaded{load.scope, std::move(memory), PinOf(load.job, load.name)});
  }
  void Do(Life& life, const LoadPinAgain& load) {
    absl::StatusOr<std::optional<Pin>> pin = Busy();
    if (!Fails()) pin = PinOf(load.job, load.name);
    life.mail.push_back(PinLoadedAgain{load.scope, std::move(pin)});
  }
  void Do(Life& life, const LoadPinnedPlan& load) {
    absl::StatusOr<PlanReplyPtr> reply = Busy();
    if (!Fails()) reply = store_.plans[load.pin.plan_sha256];
    life.mail.push_back(PinnedPlanCame{load.fetch, std::move(reply)});
  }
  void Do(Life& life, const StoreUnplanned& store) {
    const absl::StatusOr<JobMemory> memory = life.table.MemoryOf(store.job, store.generation);
    if (memory.ok() && !Fails()) store_.PutMemory(store.job, *memory).IgnoreError();
    life.mail.push_back(UnplannedStored{store.job, store.generation});
  }
  void Do(Life& life, const StoreAgreed& store) {
    life.mail.push_back(AgreedStored{store.scope, Write(life, store)});
  }
  absl::StatusOr<StandingPin> Write(Life& life, const StoreAgreed& store) {
    const absl::StatusOr<JobMemory> memory =
        life.table.MemoryOf(store.job, store.pin.generation, store.scope);
    if (!memory.ok()) return memory.status();
    if (Fails()) {
      // Agreed in this process alone: nothing can be promised beyond it.
      unpinned_.insert({store.job.second, store.pin.generation, store.name});
      return Busy();
    }
    const absl::Status put = store_.PutMemory(store.job, *memory);
    if (!put.ok()) return put;
    return store_.PutPin(store);
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

  bool Fails() { return failing_ && Chance(10); }
  static absl::Status Busy() { return absl::UnavailableError("the store is away"); }
  std::optional<Pin> PinOf(const JobName& job, const std::string& scope) {
    const auto found = store_.pins.find({job, scope});
    return found == store_.pins.end() ? std::nullopt : std::make_optional(found->second);
  }

  void Deliver(Life& life) {
    if (life.mail.empty()) return;
    const size_t at = Any(life.mail.size());
    Event event = life.mail[at];
    life.mail.erase(life.mail.begin() + static_cast<std::ptrdiff_t>(at));
    Note(absl::StrCat("event ", event.index()));
    Happen(life, std::move(event));
  }

  // The earliest timer of all; false if there is none.
  bool FireNext() {
    Life* earliest = nullptr;
    const ArmTimer* next = nullptr;
    for (const std::unique_ptr<Life>& life : lives_) {
      for (const auto& [number, timer] : life->timers) {
        if (timer.timer.scope == 0 || (next != nullptr && next->at <= timer.at)) continue;
        next = &timer;
        earliest = life.get();
      }
    }
    if (next == nullptr) return false;
    now_ = std::max(now_, next->at);
    const TimerId timer = next->timer;
    earliest->timers.erase(timer.number);
    Note("timer");
    Happen(*earliest, TimerFired{timer});
    return true;
  }

  // Nobody comes any more. With luck, the broker answers; without it, deadlines do.
  void Quiesce() {
    silent_ = Chance(50);
    // What was late before may have been the store's doing.
    const SteadyTime begun = now_ + milliseconds(1);
    for (int round = 0; round < 2000 && wrong_.empty(); ++round) {
      bool idle = true;
      for (const std::unique_ptr<Life>& life : lives_) {
        for (size_t tries = 40 * life->work.size(); tries > 0; --tries) Begin(*life);
        while (!life->mail.empty() && wrong_.empty()) Deliver(*life);
        idle &= std::all_of(life->work.begin(), life->work.end(), [&](const Action& action) {
          return silent_ && std::holds_alternative<AskBroker>(action);
        });
        for (const auto& [call, caller] : life->callers) {
          const bool counts = caller.deadline > begun + kLateness;
          if (counts && caller.deadline + kLateness < now_)
            Wrong(absl::StrCat("call ", call, " is late"));
        }
      }
      if (!FireNext() && idle) break;
    }
    for (const std::unique_ptr<Life>& life : lives_) {
      if (!life->callers.empty()) {
        Wrong(absl::StrCat("call ", life->callers.begin()->first, " waits for ever"));
      }
      for (const JobSnapshot& job : life->table.Snapshots(now_, std::nullopt, {}, 100)) {
        for (const ScopeSnapshot& scope : job.scopes) {
          const bool ended = scope.stage == "agreed" || scope.stage == "failed";
          if (!ended) Wrong(absl::StrCat("scope ", scope.name, " is ", scope.stage, " for ever"));
        }
      }
    }
  }

  // ---- one event, and what must hold after it

  void Happen(Life& life, Event event) {
    // A rank that comes, or is refused, may be told something of its own.
    const bool of_a_call =
        std::holds_alternative<RankCame>(event) || std::holds_alternative<RankRefused>(event);
    // So may those who meet a pin that is there already, and ranks of several scopes.
    const bool apart = std::holds_alternative<ScopeLoaded>(event) ||
                       std::holds_alternative<PinLoadedAgain>(event) ||
                       std::holds_alternative<DrainBegan>(event) ||
                       std::holds_alternative<UnplannedStored>(event);
    const auto* came = std::get_if<RankCame>(&event);
    const CallId own = came == nullptr ? 0 : came->call;
    const std::map<std::string, Places> held = life.HeldByTenant(now_);
    const std::string tenant = TenantOfCall(event);
    Actions actions = life.table.Handle(now_, std::move(event));
    falls_ = std::any_of(actions.counts.begin(), actions.counts.end(), [](const Count& count) {
      const auto* ended = std::get_if<ScopeEnded>(&count);
      return ended != nullptr && (ended->outcome == AgreementOutcome::kDiffer ||
                                  ended->outcome == AgreementOutcome::kMissing);
    });
    std::set<std::string> verdicts;
    for (const auto& [call, answer] : actions.answers) {
      Note(absl::StrCat("  tell ", call, ": ",
                        answer.ok() ? absl::StrCat("outcome ", static_cast<int>(answer->outcome))
                                    : ReasonOf(answer.status())));
      if (!IsForOneAlone(answer)) {
        verdicts.insert(answer.ok() ? "plan" : std::string(answer.status().message()));
      }
      if (!answer.ok() && ReasonOf(answer.status()) == "JOB_INVALID" && own != 0 && own != call) {
        Wrong(absl::StrCat("call ", own, " ends call ", call));
      }
      Told(life, call, answer);
    }
    const std::string unfair = life.Unfair(tenant, held, actions, now_);
    if (of_a_call && !unfair.empty()) Wrong(unfair);
    gave_way_ += GaveWay(actions);
    life.ForgetWhatGaveWay(now_);
    // All know of it: they may try once more.
    std::erase_if(life.standing,
                  [](const auto& entry) { return entry.second.heard.size() == kRanks; });
    if (verdicts.size() > 1 && !of_a_call && !apart) Wrong("one event, two verdicts");
    for (Action& action : actions.rest) {
      std::visit([&](auto& what) { Take(life, what); }, action);
    }
    std::set<std::pair<ScopeKey, uint32_t>> ranks;
    for (const auto& [call, caller] : life.callers) {
      const JobCall& job = caller.job;
      for (const uint32_t rank : job.ranks)
        ranks.insert({{job.id, job.generation, job.scope}, rank});
      if (!life.table.Waits(call)) Wrong(absl::StrCat("call ", call, " was dropped"));
    }
    if (static_cast<int64_t>(ranks.size()) != life.table.waiting_ranks())
      Wrong("who waits is not who was not answered");
  }

  static bool IsForOneAlone(const absl::StatusOr<PlanAnswer>& answer) {
    if (answer.ok()) return answer->outcome == PlanOutcome::kGraphRequired;
    const std::string reason = ReasonOf(answer.status());
    return reason == "CANCELLED" || reason == "DIGEST_MISMATCH";
  }

  void Told(Life& life, CallId call, const absl::StatusOr<PlanAnswer>& answer) {
    const auto found = life.callers.find(call);
    if (found == life.callers.end()) {
      Wrong(absl::StrCat("call ", call, " is answered twice"));
      return;
    }
    const JobCall job = found->second.job;
    life.callers.erase(found);
    const std::string unlike = life.Repeated(call, job, answer, falls_);
    if (!unlike.empty()) Wrong(unlike);
    if (!answer.ok() && ReasonOf(answer.status()) == "GENERATION_OVER") {
      if (job.generation >= generation_) Wrong("the last generation is over");
      life.over.insert({job.id, job.generation});
    }
    if (answer.ok() && job.generation >= kFarGeneration)
      Wrong("a generation that nobody counts to");
    if (answer.ok() && answer->reply != nullptr) Planned(life, job, answer->reply->plan_sha256);
  }

  void Planned(const Life& life, const JobCall& job, const Digest& plan) {
    ++plans_told_;
    const ScopeKey key{job.id, job.generation, job.scope};
    const auto released = released_.find(job.id);
    if (released != released_.end() && job.generation <= released->second) return;
    if (life.over.contains({job.id, job.generation})) Wrong("a plan after GENERATION_OVER");
    if (unpinned_.contains(key)) return;
    const auto [agreed, is_first] = agreed_.emplace(key, plan);
    if (agreed->second != plan) Wrong("two plans in one scope and generation");
    const auto pin = store_.pins.find({NamedJob(job.id), job.scope});
    const bool stands = pin != store_.pins.end() && pin->second.generation >= job.generation;
    if (!stands) Wrong("a plan is told before its pin is stored");
  }

  void Take(Life& life, ArmTimer& arm) { life.timers[arm.timer.number] = arm; }
  void Take(Life& life, CancelTimer& cancel) { life.timers.erase(cancel.number); }
  void Take(Life& life, AnswerFromStore& answer) {
    const PlanReplyPtr reply = store_.plans[answer.pin.plan_sha256];
    Told(life, answer.call, PlanAnswer{answer.outcome, reply, 0, {}});
  }
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
  void Take(Life& life, StoreAgreed& store) {
    if (store.again) {
      life.work.push_back(store);
      return;
    }
    std::set<uint32_t> present;
    std::set<Digest> signatures;
    for (const auto& [call, caller] : life.callers) {
      if (caller.job.id != store.job.second || caller.job.scope != store.name) continue;
      present.insert(caller.job.ranks.begin(), caller.job.ranks.end());
      signatures.insert(caller.signature);
    }
    if (present.size() != store.pin.size) Wrong("agreed without all ranks");
    if (signatures.size() != 1) Wrong("agreed on different signatures");
    life.work.push_back(store);
  }
  template <typename Other>
  void Take(Life& life, Other& action) {
    life.work.push_back(action);
  }

  std::mt19937_64 random_;
  SteadyTime now_{std::chrono::hours(1)};
  FakeWorld world_;
  SharedStore store_;
  std::vector<std::unique_ptr<Life>> lives_;
  bool differing_ = false;
  bool failing_ = false;
  bool silent_ = false;  // the broker
  bool falls_ = false;   // a verdict that is kept, in the event that is being handled
  uint64_t generation_ = 1;
  int latest_ = 1;
  int computed_ = 0;
  int plans_told_ = 0;
  int gave_way_ = 0;  // jobs with ranks that waited, and ranks
  bool crowded_ = false;
  Places places_;
  std::map<ScopeKey, Digest> agreed_;
  std::set<ScopeKey> unpinned_;
  std::map<std::string, uint64_t> released_;  // jobs, and the generation that this was done in
  std::vector<std::string> trace_;
  std::string wrong_;
};

uint64_t FromEnvironment(const char* name, const char* otherwise) {
  const char* text = getenv(name);
  return strtoull(text == nullptr ? otherwise : text, nullptr, 10);
}

TEST(AgreementExplorerTest, WhateverHappensInWhateverOrderTheInvariantsHold) {
  const uint64_t first = FromEnvironment("BUCKETD_SEED", "1");
  const uint64_t schedules = FromEnvironment("BUCKETD_SCHEDULES", "5000");
  uint64_t with_plans = 0;
  int gave_way = 0;
  for (uint64_t seed = first; seed < first + schedules; ++seed) {
    Explorer explorer(seed);
    const std::string wrong = explorer.Run();
    ASSERT_EQ(wrong, "") << "seed " << seed;
    if (explorer.plans() > 0) ++with_plans;
    gave_way += explorer.gave_way();
  }
  // Schedules in which nobody ever agrees would prove nothing.
  EXPECT_GT(with_plans + 100, schedules / 5);
  EXPECT_TRUE(gave_way > 0 || schedules < 1000);
  RecordProperty("gave_way", gave_way);
}

}  // namespace
}  // namespace bucketd
