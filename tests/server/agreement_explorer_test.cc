// Random schedules of rank agreement: ranks come, come twice, differ, leave and bring graphs;
// plans, pins and graphs come late, in any order, or not at all; generations begin, servers stand
// still, drain, restart and share a store. After every event the invariants of server/DESIGN.md are
// checked.
//
// BUCKETD_SCHEDULES and BUCKETD_SEED run more of them, or one again.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "tests/server/agreement_random_world.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kSteps = 90;
constexpr uint32_t kRanks = 3;                // of every scope
constexpr milliseconds kLateness{1000};       // of an answer beyond its caller's deadline
constexpr uint64_t kFarGeneration = 1 << 20;  // no count of restarts gets there

// What schedules have led to: where thousands never do, nothing is proved of it.
using Reached = std::map<std::string, int>;

class Explorer final : private RandomWorld {
 public:
  Explorer(uint64_t seed, Reached& reached) : RandomWorld(seed), reached_(reached) {
    // In some there is no room for all.
    crowded_ = Chance(25);
    if (crowded_ && Chance(60)) limits_.max_jobs = static_cast<int64_t>(1 + Any(3));
    if (crowded_ && Chance(60)) limits_.max_waiting_ranks = static_cast<int64_t>(1 + Any(8));
    limits_.job_idle = milliseconds(2000 + Any(30'000));
    // Replicas may lose their jobs while they stand still.
    if (Chance(40)) limits_.taken_over_after = seconds(Chance(50) ? 2 : 8);
    lives_.push_back(NewLife());
    if (Chance(40)) lives_.push_back(NewLife());
    differing_ = Chance(30);
    failing_ = Chance(limits_.taken_over_after.count() != 0 ? 60 : 30);
    away_ = Chance(30);
  }

  // "" or what was violated, with everything that led there.
  std::string Run() {
    for (int step = 0; step < kSteps && wrong_.empty(); ++step) Step();
    Quiesce();
    Rest();
    reached_["plans"] += has_planned_ ? 1 : 0;
    for (const std::unique_ptr<Life>& life : lives_) {
      reached_["swept"] += life->swept;
      reached_["doubted"] += life->doubted;
      reached_["kept_late"] += life->kept_late;
    }
    return wrong_.empty() ? "" : absl::StrCat(wrong_, "\n", absl::StrJoin(trace_, "\n"));
  }

 private:
  std::unique_ptr<Life> NewLife() { return std::make_unique<Life>(world_, limits_, now_); }

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
      // Those that servers have for themselves come often.
      std::optional<TimerId> fired = FireNext();
      while (fired.has_value() && fired->scope == 0 && Chance(90)) fired = FireNext();
    } else if (dice < 92) {
      if (!life.callers.empty()) Leave(life);
    } else {
      Disturb(life);
    }
  }

  void Disturb(Life& life) {
    switch (Any(16)) {
      case 0:
        ++generation_;
        fresh_ = Chance(25);
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
      case 7:
        Release(NamedJob(AnyJob()));
        break;
      case 8:
      case 9:
        away_ = !away_;
        break;
      case 10:
      case 11:
        Note("all stand still");
        now_ += milliseconds(500 + Any(12'000));
        break;
      default:
        world_.graphs.insert(FakeRequest(static_cast<int>(1 + Any(3)))->graph_key);
    }
  }

  // What was agreed on is forgotten with the job; the next generation begins another one.
  void Release(const JobName& job) {
    Note("release");
    store_.memories.erase(job);
    std::erase_if(store_.pins, [&](const auto& pin) { return pin.first.first == job; });
    released_[job.second] = generation_++;
    for (std::unique_ptr<Life>& each : lives_) Happen(*each, JobReleased{job, true});
  }

  // Whoever waited comes again; what was being done is lost, or was done just so.
  void Restart(Life& life) {
    Note("restart");
    for (std::unique_ptr<Life>& each : lives_) {
      if (each.get() == &life) {
        each = NewLife();
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
                  .fresh = fresh_ != (differing_ && Chance(5)),
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

  // Nobody comes any more. With luck, the broker answers; without it, deadlines do.
  void Quiesce() {
    silent_ = Chance(50);
    away_ = false;
    // What was late before may have been the store's doing.
    const SteadyTime begun = now_ + milliseconds(1);
    for (int round = 0; round < 2000 && wrong_.empty(); ++round) {
      bool idle = true;
      for (const std::unique_ptr<Life>& life : lives_) {
        idle &= DoAll(*life);
        for (const auto& [call, caller] : life->callers) {
          const bool counts = caller.deadline > begun + kLateness;
          if (counts && caller.deadline + kLateness < now_)
            Wrong(absl::StrCat("call ", call, " is late"));
        }
        idle &= IsSettled(*life);
      }
      if (idle) break;
      FireNext();
    }
    for (const std::unique_ptr<Life>& life : lives_) {
      if (!IsSettled(*life)) Wrong("a pin is awaited for ever");
      if (!life->callers.empty()) {
        Wrong(absl::StrCat("call ", life->callers.begin()->first, " waits for ever"));
      }
      for (const JobSnapshot& job : life->table.Snapshots(now_, {}, 100)) {
        for (const ScopeSnapshot& scope : job.scopes) {
          const bool ended = scope.stage == "agreed" || scope.stage == "failed";
          if (!ended) Wrong(absl::StrCat("scope ", scope.name, " is ", scope.stage, " for ever"));
        }
      }
    }
  }

  // Whether nothing is left but what the broker does not answer.
  bool DoAll(Life& life) {
    for (size_t tries = 40 * life.work.size(); tries > 0; --tries) Begin(life);
    while (!life.mail.empty() && wrong_.empty()) Deliver(life);
    return std::all_of(life.work.begin(), life.work.end(), [&](const Action& action) {
      return silent_ && std::holds_alternative<AskBroker>(action);
    });
  }
  static bool IsSettled(const Life& life) {
    return std::all_of(life.timers.begin(), life.timers.end(),
                       [](const auto& each) { return each.second.timer.scope == 0; }) &&
           std::none_of(life.plans.begin(), life.plans.end(),
                        [](const auto& each) { return each.second.awaits_pin; });
  }

  // Once nobody has used a job for long it goes, and with the last one all timers.
  void Rest() {
    for (int round = 0; round < 2000 && wrong_.empty(); ++round) {
      for (const std::unique_ptr<Life>& life : lives_) DoAll(*life);
      if (!FireNext().has_value()) break;
    }
    for (const std::unique_ptr<Life>& life : lives_) {
      if (life->table.jobs() + life->table.scopes() > 0) Wrong("a job stays for ever");
    }
  }

  // ---- one event, and what must hold after it

  struct Before {
    // A rank that comes, or is refused, may be told something of its own.
    bool of_a_call = false;
    // So may those who meet a pin that is there already, and ranks of several scopes.
    bool apart = false;
    CallId own = 0;
    std::string tenant;
    std::map<std::string, Places> held;
    std::optional<Otherwise> otherwise;
  };
  Before Look(const Life& life, const Event& event) const {
    const auto* came = std::get_if<RankCame>(&event);
    return {.of_a_call = came != nullptr || std::holds_alternative<RankRefused>(event),
            .apart = std::holds_alternative<ScopeLoaded>(event) ||
                     std::holds_alternative<PinLoadedAgain>(event) ||
                     std::holds_alternative<DrainBegan>(event) ||
                     std::holds_alternative<UnplannedStored>(event) ||
                     life.OtherwiseOf(event).has_value(),
            .own = came == nullptr ? 0 : came->call,
            .tenant = TenantOfCall(event),
            .held = life.HeldByTenant(now_),
            .otherwise = life.OtherwiseOf(event)};
  }

  void Happen(Life& life, Event event) override {
    life.NoticeAStop(now_);
    const Before before = Look(life, event);
    in_time_ = std::holds_alternative<TimerFired>(event);
    at_deadline_ = in_time_ || std::holds_alternative<PinLoadedAgain>(event);
    alone_ = nullptr;
    if (const auto* stored = std::get_if<AgreedStored>(&event)) {
      const absl::Status& status = stored->standing.status();
      if (!status.ok() && ReasonOf(status) != "QUOTA_USED_UP") alone_ = life.StoringOf(*stored);
      life.TriedAgain(*stored);
    }
    if (alone_ != nullptr) here_ = RanksOf(life, alone_->key);
    Actions actions = life.table.Handle(now_, std::move(event));
    Hear(life, before, actions);
    for (Action& action : actions.rest) {
      std::visit([&](auto& what) { Take(life, what); }, action);
    }
    if (before.own != 0 && life.table.Waits(before.own)) {
      life.used[life.callers.at(before.own).job.id] = now_;
    }
    Wrong(life.ForgetWhatIsGone(now_, in_time_, alone_));
    if (before.otherwise.has_value()) {
      ++reached_["obeyed"];
      const auto& [job, memory] = *before.otherwise;
      if (!IsReleased(job.second, memory.generation)) Wrong(life.Disobeys(*before.otherwise, now_));
    }
    CheckWhoWaits(life);
  }

  // Who is told what.
  void Hear(Life& life, const Before& before, const Actions& actions) {
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
      if (!answer.ok() && ReasonOf(answer.status()) == "JOB_INVALID" && before.own != 0 &&
          before.own != call) {
        Wrong(absl::StrCat("call ", before.own, " ends call ", call));
      }
      Told(life, call, answer);
    }
    if (before.of_a_call) Wrong(life.Unfair(before.tenant, before.held, actions, now_));
    reached_["gave_way"] += GaveWay(actions);
    // All know of it: they may try once more.
    std::erase_if(life.standing,
                  [](const auto& entry) { return entry.second.heard.size() == kRanks; });
    if (verdicts.size() > 1 && !before.of_a_call && !before.apart) {
      Wrong("one event, two verdicts");
    }
  }

  void CheckWhoWaits(const Life& life) {
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
  static std::set<uint32_t> RanksOf(const Life& life, const ScopeKey& key) {
    std::set<uint32_t> ranks;
    for (const auto& [call, caller] : life.callers) {
      const JobCall& job = caller.job;
      if (key == ScopeKey(job.id, job.generation, job.scope)) {
        ranks.insert(job.ranks.begin(), job.ranks.end());
      }
    }
    return ranks;
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
    Wrong(life.Repeated(call, job, answer, falls_));
    if (!answer.ok() && ReasonOf(answer.status()) == "GENERATION_OVER") {
      if (job.generation >= generation_) Wrong("the last generation is over");
      life.over.insert({job.id, job.generation});
    }
    if (answer.ok() && job.generation >= kFarGeneration)
      Wrong("a generation that nobody counts to");
    if (answer.ok() && answer->reply != nullptr) Planned(life, job, answer->reply->plan_sha256);
    if (answer.ok() && answer->outcome == PlanOutcome::kUnplanned) Unplanned(life, job);
  }

  bool IsReleased(const std::string& job, uint64_t generation) const {
    const auto released = released_.find(job);
    return released != released_.end() && generation <= released->second;
  }

  void Planned(Life& life, const JobCall& job, const Digest& plan) {
    has_planned_ = true;
    const ScopeKey key{job.id, job.generation, job.scope};
    Wrong(life.Tells(key, plan, alone_ != nullptr));
    // A replica tells what the store does not know if nobody can have been told anything else.
    if (alone_ != nullptr && limits_.taken_over_after.count() != 0 &&
        (here_.size() != kRanks || life.stopped >= alone_->since)) {
      Wrong("a plan is told without a pin, though ranks may be elsewhere");
    }
    if (IsReleased(job.id, job.generation)) return;
    if (life.over.contains({job.id, job.generation})) Wrong("a plan after GENERATION_OVER");
    if (unpinned_.contains(key)) return;
    const auto [agreed, is_first] = agreed_.emplace(key, plan);
    if (agreed->second != plan) Wrong("two plans in one scope and generation");
    const auto pin = store_.pins.find({NamedJob(job.id), job.scope});
    const bool stands = pin != store_.pins.end() && pin->second.generation >= job.generation;
    if (!stands) Wrong("a plan is told before its pin is stored");
  }

  // At a deadline nobody waits for the store's word.
  void Unplanned(const Life& life, const JobCall& job) {
    if (life.plans.contains({job.id, job.generation, job.scope})) {
      Wrong("a scope that has agreed is unplanned");
    }
    if (at_deadline_ || IsReleased(job.id, job.generation)) return;
    const JobMemory* memory = store_.MemoryOf(NamedJob(job.id), job.generation);
    const bool planned = memory != nullptr && !memory->unplanned.has_value();
    if (planned && !unheard_.contains({job.id, job.generation})) {
      Wrong("a generation is unplanned that another server has planned");
    }
  }

  using RandomWorld::Take;
  void Take(Life& life, AnswerFromStore& answer) {
    const PlanReplyPtr reply = store_.plans[answer.pin->plan_sha256];
    Told(life, answer.call, PlanAnswer{answer.outcome, reply, 0, {}});
  }
  void Take(Life& life, StoreAgreed& store) {
    const ScopeKey key{store.job.second, store.pin.generation, store.name};
    life.work.push_back(store);
    if (store.again) {
      const auto told = life.plans.find(key);
      const bool awaits = told != life.plans.end() && told->second.awaits_pin;
      if (!awaits || told->second.plan != store.pin.plan_sha256) Wrong("nobody awaits that pin");
      return;
    }
    life.storing[store.scope] = {key, store.pin.plan_sha256, now_};
    std::set<Digest> signatures;
    bool fresh = false;
    for (const auto& [call, caller] : life.callers) {
      if (key != ScopeKey(caller.job.id, caller.job.generation, caller.job.scope)) continue;
      signatures.insert(caller.signature);
      fresh = caller.job.fresh;
    }
    if (RanksOf(life, key).size() != store.pin.size) Wrong("agreed without all ranks");
    if (signatures.size() != 1) Wrong("agreed on different signatures");
    if (!fresh) return;
    ++reached_["fresh"];
    const std::optional<Pin> pin = store_.PinOf(store.job, store.name);
    if (pin.has_value() && pin->plan_sha256 == store.pin.plan_sha256) {
      Wrong("the pinned plan, and a fresh one was wanted");
    }
  }

  AgreementLimits limits_{.max_jobs = 8, .max_waiting_ranks = 64};
  bool crowded_ = false;
  bool differing_ = false;
  bool fresh_ = false;  // what the generation wants
  uint64_t generation_ = 1;
  int latest_ = 1;
  // Of the event that is being handled: a verdict that is kept falls; it is the time's, or perhaps
  // a deadline's; the store did not keep what is agreed on here, and which ranks are here.
  bool falls_ = false, in_time_ = false, at_deadline_ = false;
  const Storing* alone_ = nullptr;
  std::set<uint32_t> here_;
  bool has_planned_ = false;
  Reached& reached_;
  std::map<ScopeKey, Digest> agreed_;
  std::map<std::string, uint64_t> released_;  // jobs, and the generation that this was done in
};

uint64_t FromEnvironment(const char* name, const char* otherwise) {
  const char* text = getenv(name);
  return strtoull(text == nullptr ? otherwise : text, nullptr, 10);
}

TEST(AgreementExplorerTest, WhateverHappensInWhateverOrderTheInvariantsHold) {
  const uint64_t first = FromEnvironment("BUCKETD_SEED", "1");
  const uint64_t schedules = FromEnvironment("BUCKETD_SCHEDULES", "5000");
  Reached reached = {
      {"plans", 0},     // schedules with plans
      {"gave_way", 0},  // jobs with ranks that waited, and ranks
      {"fresh", 0},     // scopes that agreed on a plan that is not to be the pinned one
      {"obeyed", 0},    // generations in which another server was first
      {"swept", 0},     // jobs that nobody used
      {"doubted", 0},   // scopes without a pin whose server stood still
      {"kept_late", 0},
  };
  for (uint64_t seed = first; seed < first + schedules; ++seed) {
    ASSERT_EQ(Explorer(seed, reached).Run(), "") << "seed " << seed;
  }
  EXPECT_GT(static_cast<uint64_t>(reached["plans"]) + 100, schedules / 5);
  for (const auto& [what, times] : reached) {
    EXPECT_TRUE(times > 0 || schedules < 1000) << what;
    RecordProperty(what, times);
  }
}

}  // namespace
}  // namespace bucketd
