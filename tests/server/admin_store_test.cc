// What the Admin service does to a real store, and the status page.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"

#include "passes/plan_key.h"
#include "server/admin/admin.h"
#include "server/admin/status_page.h"
#include "server/store/sqlite_store.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class AdminStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open({});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    planning_ = std::make_unique<PlanningSwitch>(*store_, true, metrics_.planning_enabled);
    costs_ = std::make_unique<CostCatalog>(*store_, cost_metrics_);
    admin_ = MakeAdmin("/var/lib/bucketd", {});
  }
  std::unique_ptr<Admin> MakeAdmin(const std::string& store_path, AdminHooks hooks) {
    return std::make_unique<Admin>(Admin::Parts{
        options_, metrics_, cache_, *planning_, *store_, store_metrics_, store_path,
        agreement_metrics_, *costs_, quotas_, [] { return ServerState{}; }, std::move(hooks)});
  }

  std::string Put(const std::string& tenant, char graph) {
    const std::string key = absl::StrCat("bucketd plan key 2\ntenant=\"", tenant, "\"\ngraph=\"",
                                         std::string(64, graph), "\"\nmode=\"auto\"\n");
    EXPECT_TRUE(store_->PutPlan(key, tenant, "plan bytes").ok());
    cache_.Put(key, EncodePlanReply("plan bytes", key));
    return key;
  }

  ServerOptions options_;
  prometheus::Registry registry_;
  ServerMetrics metrics_{registry_};
  StoreMetrics store_metrics_{registry_};
  AgreementMetrics agreement_metrics_{registry_};
  CostMetrics cost_metrics_{registry_};
  Quotas quotas_{"", {}, registry_};
  PlanCache cache_{1 << 20, metrics_};
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<PlanningSwitch> planning_;
  std::unique_ptr<CostCatalog> costs_;
  std::unique_ptr<Admin> admin_;
};

TEST_F(AdminStoreTest, EvictsFromStoreAndMemoryButNotWhatIsPinned) {
  const std::string held = Put("a", '1');
  const std::string free = Put("a", '2');
  const std::string other = Put("b", '2');
  const WallTime later = std::chrono::time_point_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now() + std::chrono::hours(1));
  ASSERT_TRUE(store_->HoldPlan(held, "job", later).ok());

  v1::EvictPlansRequest request;
  request.mutable_selection()->set_tenant("a");
  const absl::StatusOr<v1::EvictPlansResponse> gone = admin_->EvictPlans(request, ServerItself());
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_EQ(gone->from_store(), 1);
  EXPECT_EQ(gone->from_memory(), 2);
  EXPECT_EQ(gone->held(), 1);
  EXPECT_TRUE(store_->GetPlan(held)->has_value());
  EXPECT_FALSE(store_->GetPlan(free)->has_value());
  EXPECT_TRUE(store_->GetPlan(other)->has_value());
  EXPECT_NE(cache_.Get(other), nullptr);
  EXPECT_EQ(cache_.Get(free), nullptr);
}

TEST_F(AdminStoreTest, OneKeyOfTheStoreIsFoundByTheBeginningOfItsHash) {
  const std::string key = Put("a", '1');
  Put("a", '2');
  cache_.Evict(key);
  v1::ListPlansRequest list;
  list.mutable_selection()->set_key_sha256(ToHex(Sha256(key)).substr(0, 8));
  const absl::StatusOr<v1::ListPlansResponse> plans = admin_->ListPlans(list);
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->plans_size(), 1);
  EXPECT_FALSE(plans->plans(0).in_memory());
  EXPECT_EQ(plans->plans(0).graph_digest(), std::string(64, '1'));
  EXPECT_GT(plans->plans(0).created_ms(), 0);
  v1::EvictPlansRequest evict;
  *evict.mutable_selection() = list.selection();
  EXPECT_EQ(admin_->EvictPlans(evict, ServerItself())->from_store(), 1);
  EXPECT_FALSE(store_->GetPlan(key)->has_value());
}

TEST_F(AdminStoreTest, WhatNobodyUsedIsEvictedFromBoth) {
  Put("a", '1');
  v1::EvictPlansRequest request;
  request.mutable_selection()->set_not_used_since_ms(1);
  EXPECT_EQ(admin_->EvictPlans(request, ServerItself())->from_store(), 0)
      << "it was used after 1970";
  const int64_t tomorrow = std::chrono::duration_cast<std::chrono::milliseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count() +
                           86'400'000;
  request.mutable_selection()->set_not_used_since_ms(tomorrow);
  const auto gone = admin_->EvictPlans(request, ServerItself());
  EXPECT_EQ(gone->from_store(), 1);
  EXPECT_EQ(gone->from_memory(), 1);
}

TEST_F(AdminStoreTest, ALimitCutsAListAndSaysSo) {
  for (char graph = '0'; graph <= '9'; ++graph) Put("a", graph);
  v1::ListPlansRequest list;
  list.set_limit(9);
  EXPECT_EQ(admin_->ListPlans(list)->plans_size(), 9);
  EXPECT_TRUE(admin_->ListPlans(list)->truncated());
  list.set_limit(10);
  EXPECT_EQ(admin_->ListPlans(list)->plans_size(), 10);
  EXPECT_FALSE(admin_->ListPlans(list)->truncated());
}

TEST_F(AdminStoreTest, EachKindOfWhatWasGivenUpIsShownByItself) {
  AdminHooks hooks;
  hooks.jobs = [] { return std::vector<v1::JobStatus>(); };
  agreement_metrics_.tally(Tally::kRankDisplaced).Increment(1);
  agreement_metrics_.tally(Tally::kJobDisplaced).Increment(2);
  agreement_metrics_.tally(Tally::kDisplaced).Increment(3);
  metrics_.displaced_callers.Increment(4);
  metrics_.displaced_computations.Increment(5);
  metrics_.displaced_uploads.Increment(6);
  metrics_.displaced_reports.Increment(7);
  metrics_.displaced_groups.Increment(8);
  metrics_.computations_dropped.Increment(9);
  metrics_.connections_closed.Increment(10);
  const std::string page = StatusPage(MakeAdmin("", std::move(hooks))->GetStatus());
  int n = 0;
  for (const char* what : {"waiting ranks", "jobs with waiting ranks", "pins of jobs",
                           "waiting callers", "queued computations", "uploads", "reports of costs",
                           "groups of agents", "computations without callers", "connections"}) {
    EXPECT_THAT(page,
                HasSubstr(absl::StrCat("<td class=w>", what, "<td class=\"n warn\">", ++n, "<")));
  }
}

TEST_F(AdminStoreTest, TheSwitchOutlivesTheProcess) {
  ASSERT_TRUE(planning_->Set(false, "INC-7", ServerItself()).ok());
  {
    const PlanningSwitch next(*store_, true, metrics_.planning_enabled);
    EXPECT_EQ(next.WhyDisabled(), "INC-7");
    EXPECT_TRUE(next.Get().persisted);
    EXPECT_EQ(next.Get().since_ms, planning_->Get().since_ms);
  }
  ASSERT_TRUE(planning_->Set(true, "fixed", ServerItself()).ok());
  const PlanningSwitch next(*store_, true, metrics_.planning_enabled);
  EXPECT_EQ(next.WhyDisabled(), std::nullopt);
  const PlanningSwitch in_memory(*store_, false, metrics_.planning_enabled);
  EXPECT_FALSE(in_memory.Get().persisted);
}

TEST(PlanKeyField, ReadsWhatThePlanKeyWrites) {
  const std::string key =
      PlanKey("a=\"b\"\n", Digest{}, Mesh{}, PlanOptions{}, KeyedProfile({}), "7");
  EXPECT_EQ(PlanKeyField(key, "tenant"), "a=\"b\"\n");
  EXPECT_EQ(PlanKeyField(key, "graph"), std::string(64, '0'));
  EXPECT_EQ(PlanKeyField(key, "planner"), "7");
  EXPECT_EQ(PlanKeyField(key, "mode"), PlanOptions{}.mode);
  EXPECT_EQ(PlanKeyField(key, "nothing"), "");
}

TEST(StatusPage, SaysInWordsWhatNeedsSomebody) {
  v1::GetStatusResponse status;
  status.set_state("serving");
  status.mutable_planning()->set_enabled(true);
  EXPECT_THAT(StatusPage(status), AllOf(HasSubstr("planning is on"), HasSubstr("no store")));
  status.mutable_store();
  EXPECT_THAT(StatusPage(status), AllOf(HasSubstr("store works"), Not(HasSubstr("store fails"))));
  status.mutable_planning()->set_enabled(false);
  status.mutable_planning()->set_why("INC-7");
  status.mutable_store()->mutable_writing()->set_why("the disk is full");
  status.set_state("draining");
  EXPECT_THAT(StatusPage(status),
              AllOf(HasSubstr("planning is off"), HasSubstr("INC-7"), HasSubstr("store fails"),
                    HasSubstr("the disk is full"), HasSubstr("Draining."),
                    Not(HasSubstr("http://")), Not(HasSubstr("https://"))));
}

TEST(StatusPage, WaitingJobsNameWhoIsWaitedFor) {
  v1::GetStatusResponse status;
  status.set_state("serving");
  status.set_jobs_total(1);
  v1::JobStatus& job = *status.add_jobs();
  job.set_id("<b>train</b>");
  job.set_state("waiting");
  job.set_size(100);
  job.set_arrived(94);
  for (const uint32_t rank : {3U, 7U, 8U, 9U}) job.add_missing(rank);
  const std::string page = StatusPage(status);
  EXPECT_THAT(page, AllOf(HasSubstr("&lt;b&gt;train"), HasSubstr("3, 7-9 and 2 more"),
                          HasSubstr("94 of 100")));
}

}  // namespace
}  // namespace bucketd
