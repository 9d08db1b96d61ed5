// What store.h does in one trip for leases, by every engine.
#include <chrono>
#include <optional>
#include <string>

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

}  // namespace
}  // namespace bucketd::store_test
