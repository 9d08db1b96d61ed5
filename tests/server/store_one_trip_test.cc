// What store.h does in one trip for leases, by every engine.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "server/store/store_file.h"
#include "tests/server/every_engine.h"

namespace bucketd::store_test {
namespace {

using std::chrono::milliseconds;

class OneTripTest : public ConformanceTest {
 protected:
  // "mine" if this call has put it.
  std::string Put(const std::string& value, ReadBehind* behind = nullptr) {
    const absl::StatusOr<Standing> stands =
        store_->PutIfAbsent(Shelf::kReplicas, "lease", value, behind);
    if (!stands.ok()) return stands.status().ToString();
    return stands->value + (stands->put ? " mine" : "");
  }
  void Damage() {
    if (IsPostgres()) {
      PostgresCluster::Get().Sql(database_, "UPDATE bucketd_record SET value = 'x'");
      return;
    }
    auto db = OpenStoreDb(folder_ + "/store", false, milliseconds(1000));
    ASSERT_TRUE(db.ok()) << db.status();
    ASSERT_TRUE((*db)->Exec("UPDATE records SET checksum = x'00'").ok());
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, OneTripTest, EveryEngine(), NameOf);

TEST_P(OneTripTest, WhoIsFirstHasARecordAndOthersSeeIt) {
  EXPECT_EQ(Put("a"), "a mine");
  EXPECT_EQ(Put("b"), "a");
  EXPECT_EQ(Put("a"), "a") << "the same value, but another's write";
  EXPECT_EQ(GetRecord(Shelf::kReplicas, "lease"), "a");
  EXPECT_EQ(counts_.writes[StoreWrite::kError], 0) << "a lost race is no trouble";
}

TEST_P(OneTripTest, ADamagedRecordCountsAsNone) {
  if (GetParam() == Engine::kMemory) return;  // nothing damages it
  EXPECT_EQ(Put("a"), "a mine");
  Damage();
  ReadBehind behind;
  behind.plan_key = "key";
  EXPECT_EQ(Put("b", &behind), "b mine");
  EXPECT_TRUE(behind.plan.has_value());
  EXPECT_EQ(GetRecord(Shelf::kReplicas, "lease"), "b");
}

TEST_P(OneTripTest, APlanIsReadWithIt) {
  ReadBehind behind;
  behind.plan_key = "key";
  EXPECT_EQ(Put("a", &behind), "a mine");
  ASSERT_TRUE(behind.plan.has_value());
  EXPECT_FALSE((*behind.plan)->has_value());
  const std::string large(700'000, 'p');  // of several pieces
  ASSERT_TRUE(store_->PutPlan("key", "team", large).ok());
  EXPECT_EQ(Put("b", &behind), "a");
  EXPECT_EQ(**behind.plan, large);
}

TEST_P(OneTripTest, RecordsAreReadWithItEachForItself) {
  ReadBehind behind;
  behind.names = {{Shelf::kPins, "there"}, {Shelf::kPins, "absent"}, {Shelf::kReplicas, "lease"}};
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "there", "value").ok());
  for (const std::string plan : {"", "key"}) {
    behind.plan_key = plan;
    behind.Forget();
    EXPECT_EQ(Put("a", &behind), plan.empty() ? "a mine" : "a");
    EXPECT_EQ(behind.plan.has_value(), !plan.empty());
    ASSERT_EQ(behind.values.size(), 3u);
    EXPECT_EQ(*behind.values[0], "value");
    EXPECT_EQ(*behind.values[1], std::nullopt);
    EXPECT_EQ(*behind.values[2], "a") << "behind what was put";
  }
  if (GetParam() == Engine::kMemory) return;
  Damage();
  EXPECT_EQ(Put("b", &behind), "b mine");
  EXPECT_TRUE(absl::IsDataLoss(behind.values[0].status())) << behind.values[0].status();
  EXPECT_EQ(*behind.values[2], "b");
}

TEST_P(OneTripTest, ARecordGoesWithAPlanThatIsPutIfItIsStillThatOne) {
  const Record mine{"lease", "a"};
  EXPECT_EQ(Put("a"), "a mine");
  ASSERT_TRUE(store_->PutPlanAndErase("key", "team", "plan", Shelf::kReplicas, mine).ok());
  EXPECT_EQ(Get("key"), "plan");
  EXPECT_FALSE(store_->GetRecord(Shelf::kReplicas, "lease")->has_value());

  EXPECT_EQ(Put("b"), "b mine");
  ASSERT_TRUE(store_->PutPlanAndErase("key", "team", "another", Shelf::kReplicas, mine).ok());
  EXPECT_EQ(Get("key"), "another");
  EXPECT_EQ(GetRecord(Shelf::kReplicas, "lease"), "b");
}

// As replicas do: whoever takes the lease looks for the plan behind it.
TEST_P(OneTripTest, OfManyWhoWantAPlanOneMakesIt) {
  constexpr int kThreads = 4, kPlans = 25;
  std::vector<std::unique_ptr<Store>> stores;
  while (GetParam() != Engine::kMemory && stores.size() < kThreads) stores.push_back(Open());
  std::atomic<int> made = 0;
  const auto want = [&](Store& store, const std::string& key, const std::string& self) {
    while (true) {
      const auto plan = store.GetPlan(key);
      ASSERT_TRUE(plan.ok()) << plan.status();
      if (plan->has_value()) return;
      ReadBehind behind;
      behind.plan_key = key;
      const auto stands = store.PutIfAbsent(Shelf::kReplicas, key, self, &behind);
      if (absl::IsAborted(stands.status())) continue;
      ASSERT_TRUE(stands.ok()) << stands.status();
      if (!stands->put) continue;
      ASSERT_TRUE(behind.plan->ok()) << behind.plan->status();
      if ((*behind.plan)->has_value()) {
        ASSERT_TRUE(store.ReplaceRecord(Shelf::kReplicas, key, self, std::nullopt).ok());
        return;
      }
      ++made;
      ASSERT_TRUE(store.PutPlanAndErase(key, "team", self, Shelf::kReplicas, {key, self}).ok());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        Store& store = stores.empty() ? *store_ : *stores[static_cast<size_t>(thread)];
        for (int plan = 0; plan < kPlans; ++plan) {
          want(store, absl::StrCat("plan ", plan), absl::StrCat("thread ", thread));
        }
      });
    }
  }
  EXPECT_EQ(made, kPlans);
  EXPECT_TRUE(store_->ListRecords(Shelf::kReplicas, "", "", 9)->empty());
}

}  // namespace
}  // namespace bucketd::store_test
