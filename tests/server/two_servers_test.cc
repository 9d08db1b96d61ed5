// Two servers on one folder, as in a rolling restart: what each of them keeps there, side by side,
// in the orders in which one would undo what the other has done; and both at once.
#include <algorithm>
#include <array>
#include <barrier>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "prometheus/registry.h"

#include "server/agents/epochs.h"
#include "server/base/errors.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_samples.h"
#include "server/jobs/pins.h"
#include "tests/server/forwarding_store.h"
#include "tests/server/store_fixture.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int kRounds = 40;  // of each race

int64_t NowMs() {
  return std::chrono::duration_cast<milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Pin PinOf(const std::string& plan, uint64_t generation = 1) {
  return {.generation = generation,
          .size = 2,
          .plan_key = "key",
          .profile_as_asked = "",
          .plan_sha256 = Sha256(plan)};
}

JobMemory Memory(const std::string& latest, const std::string& scope = "") {
  return {.generation = 1, .unplanned = {}, .profiles = {{"latest", latest}}, .last_scope = scope};
}

Agreeing AgreeingOn(const std::string& job, const Pin& pin,
                    JobMemory memory = Memory("p@1", "fw")) {
  memory.generation = pin.generation;
  memory.ranks = pin.size;
  return {.job = {"", job},
          .scope = "fw",
          .memory = std::move(memory),
          .pin = pin,
          .plan = "plan",
          .unless_planning_is_off = false,
          .by = ServerItself()};
}

// What one server keeps in the store.
struct Half {
  explicit Half(const std::string& folder, milliseconds pin_ttl = std::chrono::hours(1),
                int64_t pins_per_tenant = 4096)
      : store(*SqliteStore::Open({{}, folder, std::chrono::seconds(20)})),
        quotas("", TenantLimits::OfPins(pins_per_tenant), registry),
        pins(*store, agreement_metrics, quotas, pin_ttl) {
    EXPECT_TRUE(pins.Open().ok());
    EXPECT_TRUE(catalog.Load().ok());
    EXPECT_TRUE(samples.Load().ok());
  }

  absl::StatusOr<Agreed> Agree(const std::string& job, const Pin& pin,
                               const JobMemory& memory = Memory("p@1", "fw")) {
    return pins.Agree(AgreeingOn(job, pin, memory));
  }
  std::optional<Pin> PinNow(const std::string& job) { return *pins.LoadScope("", job, "fw").pin; }
  std::optional<JobMemory> JobNow(const std::string& job) {
    return *pins.LoadScope("", job, "fw").job;
  }

  std::unique_ptr<SqliteStore> store;
  prometheus::Registry registry;
  AgreementMetrics agreement_metrics{registry};
  CostMetrics cost_metrics{registry};
  Quotas quotas;
  Pins pins;
  CostCatalog catalog{*store, cost_metrics};
  CostSamples samples{*store, cost_metrics, {}, NowMs};
  Epochs epochs{*store, NowMs};
};

CostReport Report(const std::string& by, int64_t bytes, int64_t picoseconds) {
  CostReport report;
  report.profile = "site";
  report.by = {by, "job", "probe", "H100"};
  CollectiveSample sample;
  sample.of = {CollectiveKind::kAllGather, "", 8, 8, DType::kBF16};
  sample.bytes = bytes;
  sample.picoseconds = picoseconds;
  report.samples.push_back(sample);
  return report;
}

CostProfile Profile(double gamma_us) {
  CostProfile profile;
  profile.name = "site";
  profile.gamma_us = gamma_us;
  return profile;
}

class TwoServersTest : public store_test::StoreTest {
 protected:
  // Both at the same time, `kRounds` times.
  template <typename Body>
  void Race(Half& one, Half& other, Body body) {
    std::barrier both(2);
    const auto run = [&](Half& half, int which) {
      for (int round = 0; round < kRounds; ++round) {
        both.arrive_and_wait();
        body(half, which, round);
      }
    };
    std::thread second([&] { run(other, 1); });
    run(one, 0);
    second.join();
  }
};

TEST_F(TwoServersTest, APinThatTheOtherOneHasRenewedDoesNotExpireHere) {
  Half one(options_.directory, milliseconds(40)), other(options_.directory);
  ASSERT_TRUE(one.Agree("job", PinOf("plan")).ok());
  ASSERT_TRUE(one.pins.PutJob("", "idle", Memory("p@1"), ServerItself()).ok());
  ASSERT_TRUE(other.Agree("job", PinOf("plan", 2)).ok());
  std::this_thread::sleep_for(milliseconds(60));
  one.pins.DropExpired();
  EXPECT_TRUE(one.PinNow("job").has_value());
  EXPECT_THAT(one.pins.Jobs(""), ElementsAre("job"));
  EXPECT_FALSE(one.JobNow("idle").has_value()) << "what nobody renewed has gone";
  EXPECT_TRUE(one.store->ListRecords(Shelf::kPins, "", "", 9)->size() == 2);
}

TEST_F(TwoServersTest, WhatTheOtherOnePinnedCountsAndWhatItReleasedDoesNot) {
  Half one(options_.directory), other(options_.directory);
  ASSERT_TRUE(other.Agree("job", PinOf("plan")).ok());
  EXPECT_EQ(one.pins.Jobs("").size(), 0U);
  one.pins.DropExpired();
  EXPECT_EQ(one.pins.Jobs("").size(), 1U);
  ASSERT_EQ(*other.pins.Release("", "job", ServerItself()), 1);
  one.pins.DropExpired();
  EXPECT_EQ(one.pins.Jobs("").size(), 0U);
}

TEST_F(TwoServersTest, AJobThatTheOtherOneHasReleasedMakesRoomHere) {
  Half one(options_.directory, std::chrono::hours(1), 1), other(options_.directory);
  ASSERT_TRUE(one.Agree("job", PinOf("plan")).ok());
  ASSERT_EQ(*other.pins.Release("", "job", ServerItself()), 1);
  ASSERT_TRUE(one.Agree("next", PinOf("plan")).ok());
  EXPECT_THAT(one.pins.Jobs(""), ElementsAre("next"));
}

// Neither waits for DropExpired, which comes once an hour.
TEST_F(TwoServersTest, NoJobGivesWayForPinsThatTheOtherOneHasReleased) {
  Half one(options_.directory, std::chrono::hours(1), 2), other(options_.directory);
  ASSERT_TRUE(one.Agree("small", PinOf("plan")).ok());
  Pin large = PinOf("plan");
  large.size = 8;
  ASSERT_TRUE(one.Agree("large", large).ok());
  ASSERT_EQ(*other.pins.Release("", "large", ServerItself()), 1);
  ASSERT_TRUE(one.Agree("next", PinOf("plan")).ok());
  EXPECT_THAT(one.pins.Jobs(""), ElementsAre("next", "small"));
  EXPECT_EQ(one.agreement_metrics.tally(Tally::kDisplaced).Value(), 0);
}

TEST_F(TwoServersTest, PinsThatTheOtherOneHasAddedCountBeforeANewOneIsMade) {
  Half one(options_.directory, std::chrono::hours(1), 2), other(options_.directory);
  Pin large = PinOf("plan");
  large.size = 8;
  for (const char* job : {"1", "2"}) ASSERT_TRUE(other.Agree(job, large).ok());
  EXPECT_EQ(ReasonOf(one.Agree("3", PinOf("plan")).status()), "QUOTA_USED_UP");
  EXPECT_THAT(one.pins.Jobs(""), ElementsAre("1", "2"));
  EXPECT_TRUE(one.Agree("2", PinOf("plan", 2)).ok()) << "what is there is renewed";
}

TEST_F(TwoServersTest, WhereManyAreTooManyAFewGoAtATime) {
  Half one(options_.directory, std::chrono::hours(1), 2), other(options_.directory);
  for (int job = 0; job < 80; ++job) {
    ASSERT_TRUE(other.Agree(absl::StrCat("small", job), PinOf("plan")).ok());
  }
  Pin large = PinOf("plan");
  large.size = 8;
  std::vector<size_t> left;
  for (const char* job : {"1", "2"}) {
    ASSERT_TRUE(one.Agree(job, large).ok());
    left.push_back(one.pins.Jobs("").size());
  }
  EXPECT_THAT(left, ElementsAre(80 - 2 * 16 + 1, 80 - 4 * 16 + 2)) << "a job's record, and its pin";
  ASSERT_TRUE(one.Agree("3", large).ok());
  EXPECT_EQ(one.pins.Jobs("").size(), 2U);
}

TEST_F(TwoServersTest, NoJobGivesWayThatTheOtherOneHasUsedSinceItWasCounted) {
  Half one(options_.directory, std::chrono::hours(1), 2), other(options_.directory);
  for (const char* job : {"a", "b", "c"}) ASSERT_TRUE(one.Agree(job, PinOf("plan")).ok());
  EXPECT_THAT(one.pins.Jobs(""), ElementsAre("b", "c"));
  std::this_thread::sleep_for(milliseconds(2));
  ASSERT_TRUE(other.Agree("b", PinOf("plan", 2)).ok());
  ASSERT_TRUE(one.Agree("d", PinOf("plan")).ok());
  EXPECT_THAT(one.pins.Jobs(""), ElementsAre("b", "d"));
  EXPECT_EQ(one.PinNow("b")->generation, 2U);
  EXPECT_EQ(*one.pins.Release("", "d", ServerItself()), 1);
  EXPECT_EQ(one.store->Stats()->held_plans, 1) << "b's";
}

// Lets the other server come in between, once.
class Interrupted final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status ChangeRecord(Shelf shelf, absl::string_view key,
                            const std::optional<std::string>* before,
                            const std::optional<absl::string_view>& after,
                            const AuditLine* line) override {
    if (!after.has_value() && before_erasing) std::exchange(before_erasing, nullptr)();
    return ForwardingStore::ChangeRecord(shelf, key, before, after, line);
  }
  absl::Status ReleaseHolds(absl::string_view holder) override {
    if (before_releasing) std::exchange(before_releasing, nullptr)();
    return ForwardingStore::ReleaseHolds(holder);
  }
  std::function<void()> before_erasing, before_releasing;
};

TEST_F(TwoServersTest, WhatIsPinnedWhileAJobGivesWayOrIsReleasedIsWholeOrGone) {
  Half other(options_.directory);
  const auto store = *SqliteStore::Open({{}, options_.directory});
  Interrupted link(*store);
  prometheus::Registry registry;
  AgreementMetrics metrics(registry);
  Quotas quotas("", TenantLimits::OfPins(1), registry);
  Pins pins(link, metrics, quotas, std::chrono::hours(1));
  ASSERT_TRUE(pins.Agree(AgreeingOn("a", PinOf("plan"))).ok());
  Pin large = PinOf("plan", 2);
  large.size = 8;
  link.before_erasing = [&] { ASSERT_TRUE(other.Agree("a", large).ok()); };
  EXPECT_EQ(ReasonOf(pins.Agree(AgreeingOn("b", PinOf("plan"))).status()), "QUOTA_USED_UP")
      << "by now it is no weaker one";
  EXPECT_EQ(metrics.tally(Tally::kDisplaced).Value(), 0);
  ASSERT_TRUE(other.PinNow("a").has_value());
  EXPECT_TRUE(other.JobNow("a").has_value());

  large.generation = 3;
  link.before_erasing = [&] { ASSERT_TRUE(other.Agree("a", large).ok()); };
  EXPECT_EQ(*pins.Release("", "a", ServerItself()), 1) << "whatever generation it is by now";
  EXPECT_FALSE(other.PinNow("a").has_value());
  EXPECT_EQ(store->Stats()->held_plans, 0);

  ASSERT_TRUE(pins.Agree(AgreeingOn("a", PinOf("plan"))).ok());
  link.before_releasing = [&] { ASSERT_TRUE(other.Agree("a", PinOf("plan")).ok()); };
  EXPECT_EQ(*pins.Release("", "a", ServerItself()), 1);
  EXPECT_TRUE(other.PinNow("a").has_value()) << "begun behind the release";
  EXPECT_EQ(store->Stats()->held_plans, 1);
}

TEST_F(TwoServersTest, WhatSeemsToHaveExpiredStandsAsLongAsItIsThere) {
  // As where its server's clock is behind, or the other one's ahead.
  Half behind(options_.directory, -std::chrono::hours(1)), one(options_.directory);
  ASSERT_TRUE(behind.Agree("job", PinOf("plan")).ok());
  EXPECT_EQ(one.PinNow("job")->plan_sha256, Sha256("plan"));
  EXPECT_EQ(one.Agree("job", PinOf("other plan"))->pin->plan_sha256, Sha256("plan"))
      << "two plans in one generation";
  ASSERT_TRUE(behind.pins.PutJob("", "begun", Memory("p@1"), ServerItself()).ok());
  EXPECT_THAT(one.pins.PutJob("", "begun", Memory("p@2"), ServerItself())->profiles,
              ElementsAre(Pair("latest", "p@1")));
  ASSERT_TRUE(behind.Agree("old", PinOf("plan")).ok());
  one.pins.DropExpired();
  EXPECT_FALSE(one.PinNow("old").has_value());
  EXPECT_TRUE(one.PinNow("job").has_value()) << "renewed";
}

TEST_F(TwoServersTest, OfOneGenerationTheFirstWordHolds) {
  Half one(options_.directory), other(options_.directory);
  ASSERT_TRUE(one.pins.PutJob("", "job", Memory("p@1", "fw"), ServerItself()).ok());
  JobMemory second = Memory("p@2");
  second.profiles.emplace_back("q@latest", "q@7");
  const absl::StatusOr<JobMemory> stands = other.pins.PutJob("", "job", second, ServerItself());
  ASSERT_TRUE(stands.ok()) << stands.status();
  EXPECT_THAT(stands->profiles, ElementsAre(Pair("latest", "p@1"), Pair("q@latest", "q@7")));
  EXPECT_EQ(stands->last_scope, "fw");
  const absl::StatusOr<Agreed> agreed = other.Agree("job", PinOf("plan"), second);
  ASSERT_TRUE(agreed.ok()) << agreed.status();
  ASSERT_TRUE(agreed->elsewhere.has_value()) << "`latest` was something else first";
  EXPECT_EQ(agreed->elsewhere->profiles, stands->profiles);
  EXPECT_FALSE(one.PinNow("job").has_value());
  JobMemory unplanned = Memory("p@1");
  unplanned.unplanned = "INC-7";
  EXPECT_FALSE(other.pins.PutJob("", "job", unplanned, ServerItself())->unplanned.has_value());
  EXPECT_EQ(one.JobNow("job")->profiles, stands->profiles);
  unplanned.generation = 2;
  EXPECT_TRUE(other.pins.PutJob("", "job", unplanned, ServerItself())->unplanned.has_value());
  EXPECT_EQ(one.Agree("job", PinOf("plan", 2))->elsewhere->unplanned, "INC-7");
  EXPECT_FALSE(one.PinNow("job").has_value());
}

TEST_F(TwoServersTest, OfOneGenerationTheFirstPinHolds) {
  Half one(options_.directory), other(options_.directory);
  EXPECT_FALSE(other.PinNow("job").has_value());
  ASSERT_TRUE(one.Agree("job", PinOf("plan")).ok());
  EXPECT_EQ(other.Agree("job", PinOf("other plan"))->pin->plan_sha256, Sha256("plan"));
  ASSERT_TRUE(one.Agree("job", PinOf("plan", 7)).ok());
  EXPECT_TRUE(absl::IsAborted(other.Agree("job", PinOf("plan", 2)).status()))
      << "a later generation has begun";
  EXPECT_EQ(one.PinNow("job")->generation, 7U);
  // The other one has seen generation 7, which is not there any more.
  ASSERT_EQ(*one.pins.Release("", "job", ServerItself()), 1);
  EXPECT_EQ(other.Agree("job", PinOf("third plan", 1))->pin->plan_sha256, Sha256("third plan"));
}

TEST_F(TwoServersTest, PlanningThatTheOtherOneHasSwitchedOffLeavesNothingOfAnAgreement) {
  Half one(options_.directory), other(options_.directory);
  for (const bool has_looked : {true, false}) {
    const std::string job = absl::StrCat("job ", has_looked);
    ASSERT_TRUE(other.store->EraseRecord(Shelf::kSettings, kPlanningOffSetting).ok());
    EXPECT_FALSE(has_looked && one.PinNow(job).has_value());
    ASSERT_TRUE(other.store->PutRecord(Shelf::kSettings, kPlanningOffSetting, "0 INC-7").ok());
    Agreeing what{.job = {"", job},
                  .scope = "fw",
                  .memory = Memory("p@1", "fw"),
                  .pin = PinOf("plan"),
                  .plan = "plan",
                  .unless_planning_is_off = true,
                  .by = ServerItself()};
    const absl::StatusOr<Agreed> agreed = one.pins.Agree(what);
    ASSERT_TRUE(agreed.ok()) << agreed.status();
    EXPECT_TRUE(agreed->planning_is_off);
    EXPECT_FALSE(one.JobNow(job).has_value());
    AuditSelection pins;
    pins.what = "pin";
    EXPECT_THAT(*other.store->ListAudit(pins, 9), SizeIs(has_looked ? 0 : 1));
    EXPECT_EQ(other.store->Stats()->held_plans, 0);
    what.unless_planning_is_off = false;
    EXPECT_TRUE(one.pins.Agree(what)->pin.has_value());
    ASSERT_TRUE(one.pins.Release("", job, ServerItself()).ok());
    ASSERT_TRUE(other.store->EvictPlans({}).ok());
  }
}

TEST_F(TwoServersTest, BothEndUpWithOnePinAndOneMemoryOfEachGeneration) {
  Half one(options_.directory), other(options_.directory);
  std::array<std::array<std::string, kRounds>, 2> pinned, latest;
  Race(one, other, [&](Half& half, int which, int round) {
    const std::string job = absl::StrCat("job", round);
    // Both say the same of every other generation.
    const std::string profile = absl::StrCat("p@", round % 2 == 0 ? 0 : which);
    if (which == 1) half.PinNow(job);
    const absl::StatusOr<Agreed> agreed =
        half.Agree(job, PinOf(absl::StrCat("plan", which)), Memory(profile, "fw"));
    ASSERT_TRUE(agreed.ok()) << agreed.status();
    ASSERT_TRUE(agreed->pin.has_value() || round % 2 == 1);
    ASSERT_EQ(agreed->pin.has_value(), !agreed->elsewhere.has_value());
    const Pin pin = agreed->pin.has_value() ? *agreed->pin : *half.PinNow(job);
    latest[static_cast<size_t>(which)][static_cast<size_t>(round)] =
        agreed->pin.has_value() ? profile : agreed->elsewhere->profiles[0].second;
    pinned[static_cast<size_t>(which)][static_cast<size_t>(round)] = ToHex(pin.plan_sha256);
  });
  EXPECT_EQ(pinned[0], pinned[1]);
  EXPECT_EQ(latest[0], latest[1]);
}

TEST_F(TwoServersTest, NoVersionAndNoPromotionIsLost) {
  Half one(options_.directory), other(options_.directory);
  std::array<std::set<int32_t>, 2> given;
  Race(one, other, [&](Half& half, int which, int round) {
    if (round >= 20) return;
    const auto added =
        half.catalog.Add(Profile(which * 100 + round + 1.5), ProfileOrigin::kImported, "test");
    ASSERT_TRUE(added.ok()) << added.status();
    EXPECT_FALSE(added->already_there);
    given[static_cast<size_t>(which)].insert(added->info.version);
    const auto promoted =
        half.catalog.Promote("site", added->info.version, PromotionKind::kPromote);
    ASSERT_TRUE(promoted.ok()) << promoted.status();
  });
  std::set<int32_t> all = given[0];
  all.insert(given[1].begin(), given[1].end());
  EXPECT_THAT(given[0], SizeIs(20));
  EXPECT_THAT(all, SizeIs(40)) << "no number was given twice";
  // Each was promoted once, and all the way back none is missing.
  Half third(options_.directory);
  EXPECT_THAT(third.catalog.List("site"), SizeIs(40));
  std::set<int32_t> was_promoted;
  for (auto back = third.catalog.Rollback("site"); back.ok();
       back = third.catalog.Rollback("site")) {
    was_promoted.insert(back->before);
    was_promoted.insert(back->info.version);
  }
  EXPECT_EQ(was_promoted, all);
}

TEST_F(TwoServersTest, APromotionIsFollowed) {
  Half one(options_.directory), other(options_.directory);
  ASSERT_TRUE(other.catalog.Follow().ok());
  ASSERT_TRUE(one.catalog.Add(Profile(1.5), ProfileOrigin::kImported, "test").ok());
  ASSERT_TRUE(one.catalog.Add(Profile(2.5), ProfileOrigin::kImported, "test").ok());
  ASSERT_TRUE(one.catalog.Promote("site", 2, PromotionKind::kPromote).ok());
  EXPECT_FALSE(other.catalog.Resolve("site@latest", "").ok()) << "it has not looked";
  ASSERT_TRUE(other.catalog.Follow().ok());
  ASSERT_TRUE(other.catalog.Resolve("site@latest", "").ok());
  EXPECT_EQ((*other.catalog.Resolve("site@latest", ""))->version, 2);
}

TEST_F(TwoServersTest, SamplesOfBothAreKept) {
  Half one(options_.directory), other(options_.directory);
  Race(one, other, [&](Half& half, int which, int round) {
    const std::string voter = absl::StrCat("voter", which, "-", round % 10);
    const auto taken =
        half.samples.Add(Report(voter, int64_t{4096} << (round / 10), 1000 + round), voter);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->accepted, 1);
  });
  Half third(options_.directory);
  for (Half* half : {&one, &other, &third}) {
    const std::vector<HeldClass> held = half->samples.List("site");
    ASSERT_THAT(held, SizeIs(1));
    EXPECT_EQ(held[0].samples, 2 * kRounds);
    EXPECT_EQ(held[0].voters, 20);
  }
}

TEST_F(TwoServersTest, NoEpochIsGivenTwiceAndEachIsGreaterThanBefore) {
  const auto before = static_cast<uint64_t>(NowMs());
  std::set<uint64_t> given;
  uint64_t last = before - 1;
  {
    Half one(options_.directory), other(options_.directory);
    std::array<std::vector<uint64_t>, 2> of;
    Race(one, other, [&](Half& half, int which, int) {
      ASSERT_TRUE(half.epochs.Take().ok());
      for (int i = 0; i < 300; ++i) of[static_cast<size_t>(which)].push_back(half.epochs.Next());
    });
    for (const std::vector<uint64_t>& numbers : of) {
      EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
      given.insert(numbers.begin(), numbers.end());
    }
    last = *given.rbegin();
  }
  EXPECT_EQ(given.size(), 2U * kRounds * 300);
  EXPECT_GE(*given.begin(), before);
  Half later(options_.directory);
  ASSERT_TRUE(later.epochs.Take().ok());
  EXPECT_GT(later.epochs.Next(), last) << "after a restart, though the clock has not come that far";
}

TEST_F(TwoServersTest, WithoutAStoreThatCanBeWrittenEpochsGoOn) {
  { const Half made(options_.directory); }
  const auto reader = *SqliteStore::Open({{.read_only = true}, options_.directory});
  Epochs epochs(*reader, NowMs);
  EXPECT_FALSE(epochs.Take().ok());
  const uint64_t first = epochs.Next();
  EXPECT_GE(first, static_cast<uint64_t>(NowMs()) - 10'000);
  EXPECT_GT(epochs.Next(), first);
}

TEST_F(TwoServersTest, AJobThatIsForgottenIsNotCountedAnyMore) {
  Half one(options_.directory, std::chrono::hours(1), 2), other(options_.directory);
  ASSERT_TRUE(one.Agree("small", PinOf("plan")).ok());
  ASSERT_TRUE(one.Agree("smaller", PinOf("plan")).ok());
  ASSERT_EQ(*other.pins.Release("", "small", ServerItself()), 1);
  one.pins.ForgetJob("", "small");
  EXPECT_THAT(one.pins.Jobs(""), ElementsAre("smaller"));
}

}  // namespace
}  // namespace bucketd
