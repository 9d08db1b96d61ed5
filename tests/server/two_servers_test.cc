// Two servers on one folder, as in a rolling restart: what each of them keeps there, side by side,
// in the orders in which one would undo what the other has done; and both at once.
#include <algorithm>
#include <array>
#include <barrier>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "prometheus/registry.h"

#include "server/agents/epochs.h"
#include "server/costs/cost_catalog.h"
#include "server/costs/cost_samples.h"
#include "server/jobs/pins.h"
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

// What one server keeps in the store.
struct Half {
  explicit Half(const std::string& folder, milliseconds pin_ttl = std::chrono::hours(1),
                int64_t pins_per_tenant = 4096)
      : store(*SqliteStore::Open({.directory = folder, .busy_timeout = std::chrono::seconds(20)})),
        pins(*store, agreement_metrics, {.time_to_live = pin_ttl, .per_tenant = pins_per_tenant}) {
    EXPECT_TRUE(pins.Open().ok());
    EXPECT_TRUE(catalog.Load().ok());
    EXPECT_TRUE(samples.Load().ok());
  }

  std::unique_ptr<SqliteStore> store;
  prometheus::Registry registry;
  AgreementMetrics agreement_metrics{registry};
  CostMetrics cost_metrics{registry};
  Pins pins;
  CostCatalog catalog{store.get(), cost_metrics};
  CostSamples samples{store.get(), cost_metrics, {}, NowMs};
  Epochs epochs{*store, NowMs};
};

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
  ASSERT_TRUE(one.pins.PutPin("", "job", "fw", PinOf("plan"), "plan", ServerItself()).ok());
  ASSERT_TRUE(one.pins.PutJob("", "job", Memory("p@1"), ServerItself()).ok());
  ASSERT_TRUE(other.pins.PutPin("", "job", "fw", PinOf("plan", 2), "plan", ServerItself()).ok());
  std::this_thread::sleep_for(milliseconds(60));
  one.pins.DropExpired();
  EXPECT_TRUE(one.pins.LoadPin("", "job", "fw")->has_value());
  EXPECT_EQ(one.pins.Jobs("").size(), 1U);
  EXPECT_FALSE(one.pins.LoadJob("", "job")->has_value()) << "what nobody renewed has gone";
  EXPECT_TRUE(one.store->ListRecords(Shelf::kPins, "", "", 9)->size() == 1);
}

TEST_F(TwoServersTest, WhatTheOtherOnePinnedCountsAndWhatItReleasedDoesNot) {
  Half one(options_.directory), other(options_.directory);
  ASSERT_TRUE(other.pins.PutPin("", "job", "fw", PinOf("plan"), "plan", ServerItself()).ok());
  EXPECT_EQ(one.pins.Jobs("").size(), 0U);
  one.pins.DropExpired();
  EXPECT_EQ(one.pins.Jobs("").size(), 1U);
  ASSERT_EQ(*other.pins.Release("", "job", ServerItself()), 1);
  one.pins.DropExpired();
  EXPECT_EQ(one.pins.Jobs("").size(), 0U);
}

TEST_F(TwoServersTest, AJobThatTheOtherOneHasReleasedMakesRoomHere) {
  Half one(options_.directory, std::chrono::hours(1), 1), other(options_.directory);
  ASSERT_TRUE(one.pins.PutPin("", "job", "fw", PinOf("plan"), "plan", ServerItself()).ok());
  ASSERT_EQ(*other.pins.Release("", "job", ServerItself()), 1);
  ASSERT_TRUE(one.pins.PutPin("", "next", "fw", PinOf("plan"), "plan", ServerItself()).ok());
  EXPECT_THAT(one.pins.Jobs(""), ElementsAre("next"));
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
  JobMemory unplanned = Memory("p@1");
  unplanned.unplanned = "INC-7";
  EXPECT_FALSE(other.pins.PutJob("", "job", unplanned, ServerItself())->unplanned.has_value());
  EXPECT_EQ((*one.pins.LoadJob("", "job"))->profiles, stands->profiles);
  unplanned.generation = 2;
  EXPECT_TRUE(other.pins.PutJob("", "job", unplanned, ServerItself())->unplanned.has_value());
  JobMemory planned = Memory("p@1");
  planned.generation = 2;
  EXPECT_EQ(one.pins.PutJob("", "job", planned, ServerItself())->unplanned, "INC-7");
}

TEST_F(TwoServersTest, BothEndUpWithOnePinAndOneMemoryOfEachGeneration) {
  Half one(options_.directory), other(options_.directory);
  std::array<std::array<std::string, kRounds>, 2> pinned, latest;
  Race(one, other, [&](Half& half, int which, int round) {
    const std::string job = absl::StrCat("job", round);
    const absl::StatusOr<JobMemory> memory =
        half.pins.PutJob("", job, Memory(absl::StrCat("p@", which)), ServerItself());
    ASSERT_TRUE(memory.ok()) << memory.status();
    const absl::StatusOr<Pin> pin =
        half.pins.PutPin("", job, "fw", PinOf(absl::StrCat("plan", which)), "plan", ServerItself());
    ASSERT_TRUE(pin.ok()) << pin.status();
    latest[static_cast<size_t>(which)][static_cast<size_t>(round)] = memory->profiles[0].second;
    pinned[static_cast<size_t>(which)][static_cast<size_t>(round)] = ToHex(pin->plan_sha256);
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
  const auto reader = *SqliteStore::Open({.directory = options_.directory, .read_only = true});
  Epochs epochs(*reader, NowMs);
  EXPECT_FALSE(epochs.Take().ok());
  const uint64_t first = epochs.Next();
  EXPECT_GE(first, static_cast<uint64_t>(NowMs()) - 10'000);
  EXPECT_GT(epochs.Next(), first);
}

}  // namespace
}  // namespace bucketd
