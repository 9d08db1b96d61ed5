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
  std::string Put(const std::string& value, PlanRead* plan = nullptr) {
    const absl::StatusOr<Standing> stands =
        store_->PutIfAbsent(Shelf::kReplicas, "lease", value, plan);
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
  PlanRead plan{"key", std::nullopt};
  EXPECT_EQ(Put("b", &plan), "b mine");
  EXPECT_TRUE(plan.answer.has_value());
  EXPECT_EQ(GetRecord(Shelf::kReplicas, "lease"), "b");
}

TEST_P(OneTripTest, APlanIsReadWithIt) {
  PlanRead plan{"key", std::nullopt};
  EXPECT_EQ(Put("a", &plan), "a mine");
  ASSERT_TRUE(plan.answer.has_value());
  EXPECT_FALSE((*plan.answer)->has_value());
  const std::string large(700'000, 'p');  // of several pieces
  ASSERT_TRUE(store_->PutPlan("key", "team", large).ok());
  EXPECT_EQ(Put("b", &plan), "a");
  EXPECT_EQ(**plan.answer, large);
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
      PlanRead behind{key, std::nullopt};
      const auto stands = store.PutIfAbsent(Shelf::kReplicas, key, self, &behind);
      if (absl::IsAborted(stands.status())) continue;
      ASSERT_TRUE(stands.ok()) << stands.status();
      if (!stands->put) continue;
      ASSERT_TRUE(behind.answer->ok()) << behind.answer->status();
      if ((*behind.answer)->has_value()) {
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
