// What store.h promises, held by every engine: SQLite in memory and in a folder, PostgreSQL, and
// PostgreSQL behind a pooler that hands out transactions.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "server/store/store_file.h"
#include "tests/server/every_engine.h"

namespace bucketd::store_test {
namespace {

INSTANTIATE_TEST_SUITE_P(Engines, ConformanceTest, EveryEngine(), NameOf);

TEST_P(ConformanceTest, PlansAndRecordsAreReadAsTheyWereWritten) {
  const std::string plan = Bytes(700'000, 'p'), odd("a\0\xff\x80", 4);
  Put(KeyOf(1), plan);
  Put(KeyOf(2), "");
  Put(KeyOf(3, odd), "tenants are bytes", odd);
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, odd, odd).ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kSettings, odd, "another shelf").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kSettings, "empty", "").ok());
  if (GetParam() != Engine::kMemory) OpenAnew();
  EXPECT_EQ(Get(KeyOf(1)), plan);
  EXPECT_EQ(store_->GetPlan(KeyOf(2))->value_or("none"), "");
  EXPECT_EQ(Get(KeyOf(3, odd)), "tenants are bytes");
  EXPECT_EQ(store_->ListPlans({.tenant = odd}, 9)->size(), 1U);
  EXPECT_FALSE(store_->GetPlan(KeyOf(4))->has_value());
  EXPECT_EQ(GetRecord(Shelf::kPins, odd), odd);
  EXPECT_EQ(GetRecord(Shelf::kSettings, odd), "another shelf");
  EXPECT_EQ(store_->GetRecord(Shelf::kSettings, "empty")->value_or("none"), "");
  EXPECT_FALSE(store_->GetRecord(Shelf::kProfiles, odd)->has_value());
  EXPECT_EQ(counts_.reads[StoreRead::kMiss], 2);
  EXPECT_EQ(counts_.reads[StoreRead::kDamaged] + counts_.reads[StoreRead::kError], 0);
}

TEST_P(ConformanceTest, ANewValueTakesThePlaceOfTheOldOne) {
  Put(KeyOf(1), Bytes(600'000, 'a'));
  Put(KeyOf(1), "b");
  EXPECT_EQ(Get(KeyOf(1)), "b") << "and nothing of the longer one's pieces";
  EXPECT_EQ(Stats().plans, 1);
  EXPECT_EQ(Stats().plan_bytes, static_cast<int64_t>(KeyOf(1).size()) + 1);
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "k", "1").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "k", "2").ok());
  EXPECT_EQ(GetRecord(Shelf::kPins, "k"), "2");
  EXPECT_EQ(Stats().records, 1);
  ASSERT_TRUE(store_->EraseRecord(Shelf::kPins, "k").ok());
  ASSERT_TRUE(store_->EraseRecord(Shelf::kPins, "k").ok()) << "there is none any more: no error";
  EXPECT_FALSE(store_->GetRecord(Shelf::kPins, "k")->has_value());
}

TEST_P(ConformanceTest, ARecordIsReplacedIfItIsStillWhatItWas) {
  constexpr auto kOk = absl::StatusCode::kOk, kAborted = absl::StatusCode::kAborted;
  EXPECT_EQ(Replace("k", "0", "1"), kAborted) << "there is none";
  EXPECT_EQ(Replace("k", std::nullopt, std::nullopt), kOk);
  EXPECT_EQ(Replace("k", std::nullopt, "1"), kOk);
  EXPECT_EQ(Replace("k", std::nullopt, "2"), kAborted);
  EXPECT_EQ(Replace("k", std::nullopt, std::nullopt), kAborted);
  EXPECT_EQ(Replace("k", std::nullopt, "1"), kAborted) << "the same value, but another's write";
  EXPECT_EQ(Replace("k", "1", "2"), kOk);
  EXPECT_EQ(Replace("k", "1", "2"), kAborted) << "the same value, but another's write";
  EXPECT_EQ(GetRecord(Shelf::kPins, "k"), "2");
  EXPECT_EQ(Replace("k", "2", "2"), kOk);
  EXPECT_EQ(Replace("k", "1", std::nullopt), kAborted);
  EXPECT_EQ(Replace("k", "2", std::nullopt), kOk);
  EXPECT_FALSE(store_->GetRecord(Shelf::kPins, "k")->has_value());
  EXPECT_EQ(counts_.writes[StoreWrite::kError], 0) << "a lost race is no trouble";
}

TEST_P(ConformanceTest, SeveralRecordsAreReadInOneGo) {
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "a", "1").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kSettings, "a", "").ok());
  const auto values = store_->GetRecords(
      {{Shelf::kSettings, "a"}, {Shelf::kPins, "b"}, {Shelf::kPins, "a"}, {Shelf::kSettings, "a"}});
  ASSERT_EQ(values.size(), 4U);
  EXPECT_EQ((*values[0]).value_or("none"), "");
  EXPECT_FALSE((*values[1]).has_value());
  EXPECT_EQ(**values[2], "1");
  EXPECT_EQ((*values[3]).value_or("none"), "");
}

// What is there of all that WriteTogether could have written.
class TogetherTest : public ConformanceTest {
 protected:
  static RecordChange From(const std::string& key, const std::optional<std::string>& before,
                           const std::string& after) {
    const AuditLine line{ServerItself(), "team", "pin", key, before.value_or(""), after};
    return {{Shelf::kPins, key}, before, after, line};
  }
  absl::StatusCode Write(const Changes& changes) { return store_->WriteTogether(changes).code(); }
  std::string Now() {
    return absl::StrCat(GetRecord(Shelf::kPins, "job"), " ", GetRecord(Shelf::kPins, "pin"), " ",
                        Stats().held_plans, " ", store_->ListAudit({}, 99)->size());
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, TogetherTest, EveryEngine(), NameOf);

TEST_P(TogetherTest, AllIsWrittenOrNothing) {
  constexpr auto kOk = absl::StatusCode::kOk, kAborted = absl::StatusCode::kAborted;
  const RecordName off{Shelf::kSettings, kPlanningOffSetting};
  const PlanHeld hold{KeyOf(1), "job", now_ + hours(1)};
  const RecordChange job = From("job", std::nullopt, "1"), pin = From("pin", std::nullopt, "2");
  EXPECT_EQ(Write({off, hold, {job, pin}}), kAborted) << "there is no such plan";
  EXPECT_EQ(Now(), "  0 0");
  Put(KeyOf(1), "plan");
  EXPECT_EQ(Write({off, hold, {job, From("pin", "0", "2")}}), kAborted);
  EXPECT_EQ(Write({off, hold, {From("job", "0", "1"), pin}}), kAborted);
  ASSERT_TRUE(store_->PutRecord(off.shelf, off.key, "INC-7").ok());
  EXPECT_EQ(Write({off, hold, {job, pin}}), kAborted);
  EXPECT_EQ(Now(), "  0 0");
  EXPECT_EQ(Write({std::nullopt, std::nullopt, {job}}), kOk);
  EXPECT_EQ(Now(), "1  0 1");
  ASSERT_TRUE(store_->EraseRecord(off.shelf, off.key).ok());
  EXPECT_EQ(Write({off, hold, {job, pin}}), kAborted) << "the same value, but another's write";
  EXPECT_EQ(Now(), "1  0 1");
  EXPECT_EQ(Write({off, hold, {From("job", "1", "1"), pin}}), kOk);
  EXPECT_EQ(Now(), "1 2 1 3");
  if (GetParam() != Engine::kMemory) OpenAnew();
  EXPECT_EQ(Now(), "1 2 1 3");
  EXPECT_EQ(*store_->EvictPlans({}), 0) << "it is held";
  EXPECT_EQ(counts_.writes[StoreWrite::kError], 0) << "a lost race is no trouble";
}

TEST_P(TogetherTest, OfManyWhoCountTwoRecordsTogetherNoneSeesThemApart) {
  constexpr int kThreads = 4, kSteps = 15;
  observer_ = &StoreObserver::Nobody();  // it counts for one thread
  OpenAnew();
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < kThreads && GetParam() != Engine::kMemory; ++i) stores.push_back(Open());
  const auto count = [&](Store* store, bool job_first) {
    for (int done = 0; done < kSteps;) {
      const auto values = store->GetRecords({{Shelf::kPins, "job"}, {Shelf::kPins, "pin"}});
      ASSERT_TRUE(values[0].ok() && values[1].ok());
      const std::string next = absl::StrCat(std::stoi((*values[0]).value_or("0")) + 1);
      Changes changes;
      changes.records = {From("job", *values[0], next), From("pin", *values[1], next)};
      if (!job_first) std::swap(changes.records[0], changes.records[1]);
      const absl::Status written = store->WriteTogether(changes);
      ASSERT_TRUE(written.ok() || absl::IsAborted(written)) << written;
      if (!written.ok()) continue;
      ++done;
      ASSERT_EQ(*values[0], *values[1]) << "written though they were of two times";
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    Store* own = stores.empty() ? store_.get() : stores[static_cast<size_t>(i)].get();
    threads.emplace_back(count, own, i % 2 == 0);
  }
  for (std::thread& thread : threads) thread.join();
  const std::string all = absl::StrCat(kThreads * kSteps);
  EXPECT_EQ(Now(), absl::StrCat(all, " ", all, " 0 ", std::min(99, 2 * kThreads * kSteps)));
}

TEST_P(ConformanceTest, OfManyWhoCountTogetherNoneLosesANumber) {
  constexpr int kThreads = 4, kSteps = 25;
  observer_ = &StoreObserver::Nobody();  // it counts for one thread
  OpenAnew();
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "n", "0").ok());
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < kThreads && GetParam() != Engine::kMemory; ++i) stores.push_back(Open());
  const auto count = [&](Store* store) {
    for (int done = 0; done < kSteps;) {
      const auto n = store->GetRecord(Shelf::kPins, "n");
      ASSERT_TRUE(n.ok()) << n.status();
      const std::string next = absl::StrCat(std::stoi(n->value_or("")) + 1);
      const absl::Status replaced = store->ReplaceRecord(Shelf::kPins, "n", *n, next);
      ASSERT_TRUE(replaced.ok() || absl::IsAborted(replaced)) << replaced;
      if (replaced.ok()) ++done;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    Store* own = stores.empty() ? store_.get() : stores[static_cast<size_t>(i)].get();
    threads.emplace_back(count, own);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(GetRecord(Shelf::kPins, "n"), absl::StrCat(kThreads * kSteps));
}

TEST_P(ConformanceTest, RecordsAreListedByPrefixInPages) {
  for (const char* key : {"a/1", "a/2", "a/3", "a", "b/1", "a0", "\xff\xff", "\xff", ""}) {
    ASSERT_TRUE(store_->PutRecord(Shelf::kPins, key, absl::StrCat("v", key)).ok());
  }
  const auto list = [&](const std::string& prefix, const std::string& from, int limit) {
    std::string keys;
    const auto records = store_->ListRecords(Shelf::kPins, prefix, from, limit);
    EXPECT_TRUE(records.ok()) << records.status();
    for (const Record& record : *records) {
      EXPECT_EQ(record.value, "v" + record.key);
      absl::StrAppend(&keys, record.key, " ");
    }
    return keys;
  };
  EXPECT_EQ(list("", "", 7), " a a/1 a/2 a/3 a0 b/1 ");
  EXPECT_EQ(list("", KeyBehind(""), 1), "a ");
  EXPECT_EQ(list("\xff", "", 100), "\xff \xff\xff ");
  EXPECT_EQ(list("a/", "", 2), "a/1 a/2 ");
  EXPECT_EQ(list("a/", "a/2", 1), "a/2 ");
  EXPECT_EQ(list("a/", KeyBehind("a/2"), 2), "a/3 ");
  EXPECT_EQ(list("a/", KeyBehind("a/3"), 2), "");
  EXPECT_EQ(list("a/", "a", 1), "a/1 ");
  EXPECT_EQ(list("c", "", 9), "");
  for (const int page : {1, 2, 100}) {
    int seen = 0;
    ASSERT_TRUE(store_
                    ->ForEachRecord(Shelf::kPins, "", page,
                                    [&](const Record&) {
                                      return ++seen <= 9 ? absl::OkStatus()
                                                         : absl::InternalError("again and again");
                                    })
                    .ok())
        << page;
    EXPECT_EQ(seen, 9) << page;
  }
}

TEST_P(ConformanceTest, PlansAreSelectedByTenantGraphKeyAndAge) {
  Put(KeyOf(1), "1");
  now_ += minutes(10);
  Put(KeyOf(2, "other"), "2", "other");
  now_ += minutes(10);
  Put(KeyOf(3), "3");
  const auto count = [&](const PlanSelection& selection) {
    return store_->ListPlans(selection, 9)->size();
  };
  const auto all = store_->ListPlans({}, 9);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 3U);
  EXPECT_EQ((*all)[0].key, KeyOf(3)) << "the most recently used first";
  EXPECT_EQ((*all)[1].tenant, "other");
  EXPECT_EQ((*all)[2].created, now_ - minutes(20));
  EXPECT_EQ(count({.tenant = "team"}), 2U);
  EXPECT_EQ(count({.key = KeyOf(3)}), 1U);
  const std::string digest = std::string(62, '0') + "02";
  EXPECT_EQ(count({.graph_digest = digest}), 1U);
  EXPECT_EQ(count({.not_used_since = now_ - minutes(5)}), 2U);
  EXPECT_EQ(store_->ListPlans({}, 1)->size(), 1U);
  EXPECT_EQ(Stats().oldest_use, now_ - minutes(20));
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), "job", now_ + hours(1)).ok());
  const auto gone = store_->EvictPlans({.tenant = "team"});
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_EQ(*gone, 1) << "the one that is held stays";
  EXPECT_EQ(Get(KeyOf(1)), "1");
  EXPECT_EQ(Get(KeyOf(3)), "");
}

TEST_P(ConformanceTest, AHeldPlanStaysUntilTheLastHoldEnds) {
  Put(KeyOf(1), "1");
  EXPECT_EQ(store_->HoldPlan(KeyOf(9), "a", now_ + hours(1)).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), "a", now_ + hours(5)).ok());
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), "a", now_ + hours(1)).ok()) << "moves the end";
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), "b", now_ + hours(3)).ok());
  EXPECT_EQ(*store_->EvictPlans({}), 0);
  ASSERT_TRUE(store_->ReleaseHolds("b").ok());
  ASSERT_TRUE(store_->ReleaseHolds("nobody").ok());
  Put(KeyOf(1), "2");
  EXPECT_EQ(Stats().held_plans, 1) << "a plan that is replaced stays held";
  EXPECT_TRUE(store_->ListPlans({}, 9)->at(0).held);
  EXPECT_EQ(*store_->EvictPlans({}), 0);
  now_ += hours(2);
  EXPECT_EQ(Stats().held_plans, 0);
  EXPECT_FALSE(store_->ListPlans({}, 9)->at(0).held);
  EXPECT_EQ(*store_->EvictPlans({}), 1);
  EXPECT_EQ(counts_.evicted_plans, 1);
}

TEST_P(ConformanceTest, HoldsStayWhereSomebodyHasPinnedMeanwhile) {
  const std::string job = "team\njob\n";
  Put(KeyOf(1), "1");
  Put(KeyOf(2), "2");
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), job, now_ + hours(1)).ok());
  ASSERT_TRUE(store_->HoldPlan(KeyOf(2), job, now_ + hours(1)).ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, job + "scope\nfw", "pin").ok());
  ASSERT_TRUE(store_->ReleaseHolds(job).ok());
  EXPECT_EQ(Stats().held_plans, 2);
  EXPECT_EQ(*store_->EvictPlans({}), 0);
  ASSERT_TRUE(store_->EraseRecord(Shelf::kPins, job + "scope\nfw").ok());
  for (const char* another : {"team\njo", "team\njob", "team\njob\v", "team\njobs\njob"}) {
    ASSERT_TRUE(store_->PutRecord(Shelf::kPins, another, "pin").ok());
  }
  ASSERT_TRUE(store_->PutRecord(Shelf::kCostSamples, job + "1", "no pin").ok());
  ASSERT_TRUE(store_->ReleaseHolds(job).ok());
  EXPECT_EQ(Stats().held_plans, 0);
  EXPECT_EQ(*store_->EvictPlans({}), 2);
}

TEST_P(ConformanceTest, PlansGoForAgeAndForRoomTheLongestUnusedFirst) {
  max_age_ = minutes(30);
  max_bytes_ = 3 * 10'000;
  OpenAnew();
  Put(KeyOf(1), Bytes(9'000, 'x'));
  Put(KeyOf(2), Bytes(9'000, 'x'));
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1), "job", now_ + hours(9)).ok());
  now_ += hours(1);
  store_->NoteUse(KeyOf(2));
  Put(KeyOf(3), Bytes(9'000, 'x'));
  Maintain();
  EXPECT_EQ(Stats().plans, 3);
  now_ += minutes(1);
  Put(KeyOf(4), Bytes(9'000, 'x'));
  now_ += minutes(1);
  Put(KeyOf(5), Bytes(9'000, 'x'));
  Maintain();
  EXPECT_LE(Stats().plan_bytes, max_bytes_);
  EXPECT_NE(Get(KeyOf(1)), "") << "held";
  EXPECT_EQ(Get(KeyOf(2)) + Get(KeyOf(3)), "") << "used longest ago";
  EXPECT_NE(Get(KeyOf(4)), "");
  now_ += hours(2) + minutes(1);
  Put(KeyOf(6), "new");
  Maintain();
  EXPECT_EQ(Stats().plans, 2);
  EXPECT_NE(Get(KeyOf(1)), "");
  EXPECT_EQ(counts_.evicted_plans, 4);
}

TEST_P(ConformanceTest, ATenantIsKeptWithinItsBytesByItsOwnOldestPlansUnlessTheyAreHeld) {
  for (int i = 0; i < 4; ++i) {
    Put(KeyOf(i), Bytes(1000, 'p'));
    now_ += minutes(2);
  }
  Put(KeyOf(9, "other"), Bytes(1000, 'p'), "other");
  const int64_t each = static_cast<int64_t>(KeyOf(0).size()) + 1000;
  EXPECT_EQ(store_->PlanBytes()->at("team"), 4 * each);
  EXPECT_EQ(*store_->KeepWithin("team", 4 * each), 4 * each);
  ASSERT_TRUE(store_->HoldPlan(KeyOf(0), "job", now_ + hours(1)).ok());
  EXPECT_EQ(*store_->KeepWithin("team", 3 * each - 1), 2 * each);
  EXPECT_NE(Get(KeyOf(0)), "") << "held";
  EXPECT_EQ(Get(KeyOf(1)), "");
  EXPECT_EQ(Get(KeyOf(2)), "");
  EXPECT_NE(Get(KeyOf(3)), "");
  EXPECT_EQ(*store_->KeepWithin("team", 0), each) << "what a job holds stays";
  EXPECT_NE(Get(KeyOf(9, "other")), "");
  EXPECT_EQ(*store_->KeepWithin("nobody", 0), 0);
  EXPECT_EQ(Stats().plans, 2);
}

TEST_P(ConformanceTest, AScanSeesEveryValueAndItsHoldsAndIsNoUse) {
  const std::string odd("a\0\xff", 3);
  constexpr int kPlans = 300, kRecords = 70;  // more than a page of either
  for (int i = 0; i < kPlans; ++i) Put(KeyOf(i % 256, absl::StrCat(i)), absl::StrCat("plan ", i));
  Put(KeyOf(1, "large"), Bytes(600'000, 'p'), odd);
  for (int i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(store_->PutRecord(Shelf::kPins, absl::StrCat("k", i), absl::StrCat(i)).ok());
  }
  ASSERT_TRUE(store_->PutRecord(Shelf::kSettings, odd, odd).ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kSettings, "", "a key of no bytes").ok());
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1, "large"), "job b", now_ + hours(2)).ok());
  ASSERT_TRUE(store_->HoldPlan(KeyOf(1, "large"), "job a", now_ + hours(1)).ok());
  const WallTime used = now_;
  now_ += minutes(30);

  std::map<std::string, ScannedValue> plans;
  std::string last;
  const auto scanned = store_->ScanPlans([&](const ScannedValue& plan) {
    EXPECT_LT(last, plan.name);
    last = plan.name;
    EXPECT_TRUE(plan.status.ok()) << plan.status;
    plans[plan.key] = plan;
    return absl::OkStatus();
  });
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(scanned->values, kPlans + 1);
  EXPECT_EQ(scanned->damaged + scanned->unreadable_regions, 0);
  ASSERT_EQ(plans.size(), static_cast<size_t>(kPlans + 1));
  EXPECT_EQ(plans[KeyOf(299 % 256, "299")].value, "plan 299");
  const ScannedValue& large = plans[KeyOf(1, "large")];
  EXPECT_EQ(large.value, Bytes(600'000, 'p'));
  EXPECT_EQ(large.tenant, odd);
  EXPECT_EQ(large.graph_digest, std::string(62, '0') + "01");
  EXPECT_EQ(large.bytes, static_cast<int64_t>(large.key.size() + large.value.size()));
  ASSERT_EQ(large.holds.size(), 2U);
  EXPECT_EQ(large.holds[0].holder, "job a");
  EXPECT_EQ(large.holds[1].expires, used + hours(2));
  EXPECT_EQ(Stats().oldest_use, used) << "nothing was used";

  std::map<std::pair<Shelf, std::string>, std::string> records;
  const auto listed = store_->ScanRecords([&](const ScannedValue& record) {
    records[{record.shelf, record.key}] = record.value;
    return absl::OkStatus();
  });
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(listed->values, kRecords + 2);
  EXPECT_EQ(records.size(), static_cast<size_t>(kRecords + 2));
  EXPECT_EQ((records[{Shelf::kSettings, odd}]), odd);
  EXPECT_EQ((records[{Shelf::kSettings, ""}]), "a key of no bytes");

  int seen = 0;
  const auto ended = store_->ScanPlans([&](const ScannedValue&) {
    return ++seen < 3 ? absl::OkStatus() : absl::CancelledError("enough");
  });
  EXPECT_EQ(ended.status(), absl::CancelledError("enough"));
  EXPECT_EQ(seen, 3);
}

// Pages of two: the first has one that is damaged, the second has two.
TEST_P(ConformanceTest, BehindAPageThatDamageMadeShortOrEmptyTheListGoesOn) {
  if (GetParam() == Engine::kMemory) return;  // nothing damages it
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) {
    ASSERT_TRUE(store_->PutRecord(Shelf::kPins, key, key).ok());
  }
  if (IsPostgres()) {
    PostgresCluster::Get().Sql(database_,
                               "UPDATE bucketd_record SET value = 'x' WHERE key IN ('b','c','d')");
  } else {
    auto db = OpenStoreDb(folder_ + "/store", false, milliseconds(1000));
    ASSERT_TRUE(db.ok()) << db.status();
    ASSERT_TRUE((*db)
                    ->Exec("UPDATE records SET checksum = x'00' WHERE key IN (x'62', x'63', "
                           "x'64')")
                    .ok());
  }
  std::vector<std::string> found;
  std::string from;
  while (true) {
    const auto page = store_->ListRecords(Shelf::kPins, "", from, 2);
    ASSERT_TRUE(page.ok()) << page.status();
    if (page->empty()) break;
    for (const Record& record : *page) found.push_back(record.key);
    from = KeyBehind(page->back().key);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"a", "e", "f"}));
  EXPECT_EQ(counts_.reads[StoreRead::kDamaged], 3);
}

TEST_P(ConformanceTest, AnotherServersWriteChangesTheVersion) {
  if (GetParam() == Engine::kMemory) return;  // it has no other server
  const auto other = Open();
  const auto before = store_->Version();
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(*store_->Version(), *before);
  ASSERT_TRUE(other->PutRecord(Shelf::kSettings, kPlanningOffSetting, "why").ok());
  EXPECT_NE(*store_->Version(), *before);
}

}  // namespace
}  // namespace bucketd::store_test
