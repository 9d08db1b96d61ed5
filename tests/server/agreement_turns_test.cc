// Work that the agreement does for one tenant does not hold up another's: turns are counted at the
// store, in which every job begins and is let go of.
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"

#include "server/base/errors.h"
#include "server/base/shares.h"
#include "server/costs/cost_catalog.h"
#include "server/jobs/agreement.h"
#include "server/plans/read_plan_request.h"
#include "server/store/sqlite_store.h"
#include "tests/server/forwarding_store.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

// Notes for which tenant it is asked for a job's records, and answers when it is open.
class Turnstile final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                       absl::string_view key) override {
    if (shelf == Shelf::kPins && absl::StrContains(key, "fw")) Pass(key);
    return ForwardingStore::GetRecord(shelf, key);
  }
  absl::StatusOr<std::vector<Record>> ListRecords(Shelf shelf, absl::string_view prefix,
                                                  absl::string_view from, int32_t limit) override {
    if (shelf == Shelf::kPins && !prefix.empty()) Pass(prefix);
    return ForwardingStore::ListRecords(shelf, prefix, from, limit);
  }

  void Open() {
    const absl::MutexLock lock(&mutex_);
    is_open_ = true;
  }
  void OpenFor(const std::string& tenant) {
    const absl::MutexLock lock(&mutex_);
    passes_ = tenant;
  }
  // How often it had been asked for others before it was asked for `tenant` so often.
  size_t OthersBefore(const std::string& tenant, size_t times) {
    size_t others = 0, its = 0;
    const auto came = [&] {
      others = its = 0;
      for (const std::string& who : who_) {
        if (its == times) break;
        ++(who == tenant ? its : others);
      }
      return its == times;
    };
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&came), absl::Seconds(20)));
    return others;
  }

 private:
  void Pass(absl::string_view key) {
    const absl::MutexLock lock(&mutex_);
    who_.emplace_back(key.substr(0, key.find('\n')));
    if (who_.back() != passes_) mutex_.Await(absl::Condition(&is_open_));
  }

  absl::Mutex mutex_;
  std::vector<std::string> who_;
  std::string passes_;
  bool is_open_ = false;
};

class AgreementTurnsTest : public ::testing::Test {
 protected:
  ~AgreementTurnsTest() override {
    store_.Open();
    timers_.Stop();
    agreement_.Stop();
  }

  // One rank of two: its scope's pin is read.
  void Begin(const std::string& tenant, const std::string& job) {
    Begin(tenant, job, 0, 2, minutes(10), [](const auto&) {});
  }
  void Begin(const std::string& tenant, const std::string& job, uint32_t rank, uint32_t size,
             milliseconds patience, Agreement::Done done) {
    v1::GetPlanRequest message;
    message.set_tenant(tenant);
    message.set_graph_digest(std::string(32, 'g'));
    v1::MeshDim& dim = *message.mutable_mesh()->add_dims();
    dim.set_name("dp");
    dim.set_size(8);
    dim.set_ranks_per_node(8);
    message.mutable_mesh()->set_device_type("cuda");
    const JobCall call{.tenant = tenant,
                       .id = job,
                       .generation = 1,
                       .scope = "fw",
                       .ranks = {rank},
                       .size = size,
                       .share = ShareOf(tenant, "host", true)};
    agreement_.GetPlan(call, *ReadPlanRequest(message, costs_),
                       std::chrono::steady_clock::now() + patience, std::move(done));
  }
  void Release(const std::string& tenant, const std::string& job) {
    agreement_.ReleaseJobs({.tenant = tenant,
                            .job = job,
                            .by = ServerItself(),
                            .share = ShareOf(tenant, "host", true)},
                           [](const auto&) {});
  }
  // Though what b has handed in before stands in the store and does not come to an end.
  void ExpectThatAsComeInTurn() {
    store_.OpenFor("a");
    for (const char* job : {"1", "2", "3"}) Begin("a", job);
    Release("a", "4");
    EXPECT_LE(store_.OthersBefore("a", 4), 2U) << "who has two workers leaves the third";
    store_.Open();
    EXPECT_GT(store_.OthersBefore("b", kMany), 0U);
  }

  static constexpr size_t kMany = 300;
  const ServerOptions options_ = [] {
    ServerOptions options;
    options.max_jobs = 20'000;
    return options;
  }();
  prometheus::Registry registry_;
  ServerMetrics metrics_{registry_};
  AgreementMetrics agreement_metrics_{registry_};
  CostMetrics cost_metrics_{registry_};
  const std::unique_ptr<SqliteStore> engine_ = *SqliteStore::Open({});
  Turnstile store_{*engine_};
  CostCatalog costs_{store_, cost_metrics_};
  PlanningSwitch planning_{*engine_, /*durable=*/false, metrics_.planning_enabled};
  PlanCache cache_{int64_t{1} << 20, metrics_};
  Quotas quotas_{"", {}, registry_};
  GraphStore graphs_{int64_t{1} << 20, metrics_, quotas_};
  GraphIntake intake_{options_.intake, metrics_};
  Timers timers_;
  ComputeQueue compute_queue_{1, 16};
  WorkerPool intake_pool_{1, 16};
  PlanBroker broker_{{cache_, graphs_, intake_, compute_queue_, intake_pool_, timers_, metrics_,
                      options_, quotas_, ComputePlan}};
  Pins pins_{store_, agreement_metrics_, quotas_, options_.pin_ttl};
  Agreement agreement_{{broker_, cache_, graphs_, intake_, pins_, timers_, agreement_metrics_,
                        options_, planning_, costs_}};
};

TEST_F(AgreementTurnsTest, ATenantsManyJobsHoldUpNobodyElses) {
  for (size_t job = 0; job < kMany; ++job) Begin("b", absl::StrCat(job));
  ExpectThatAsComeInTurn();
}

TEST_F(AgreementTurnsTest, ATenantsManyReleasesHoldUpNobodyElsesJobs) {
  for (size_t job = 0; job < kMany; ++job) Release("b", absl::StrCat(job));
  ExpectThatAsComeInTurn();
}

TEST_F(AgreementTurnsTest, APatternFitsJobsHoweverManyATenantHas) {
  constexpr size_t kJobs = 10'001;
  for (size_t job = 0; job < kJobs; ++job) Begin("a", absl::StrCat("run-", job));
  for (const char* other : {"", "b"}) Begin(other, "run-0");
  v1::ForgetJobsRequest forget;
  forget.set_tenant("a");
  forget.set_pattern("run-*");
  EXPECT_EQ(agreement_.Forget(forget).size(), kJobs);
  forget.set_pattern("run-1?");
  EXPECT_EQ(agreement_.Forget(forget).size(), 10U);
}

// More than whoever ends a scope answers by itself.
TEST_F(AgreementTurnsTest, ManyRanksHearWhoIsMissingThoughTheStoreDoesNotAnswer) {
  for (const char* job : {"1", "2", "3"}) Release("b", job);
  absl::BlockingCounter told(kMany);
  for (uint32_t rank = 0; rank < kMany; ++rank) {
    Begin("b", "4", rank, kMany + 1, milliseconds(2000), [&told](const auto& answer) {
      EXPECT_EQ(ReasonOf(answer.status()), "RANKS_MISSING");
      told.DecrementCount();
    });
  }
  told.Wait();
}

// It may have thousands, and takes a commit for each.
TEST_F(AgreementTurnsTest, WhoLetsGoOfPinsKeepsNoOtherTenantsFromBeingWritten) {
  store_.OpenFor("a");
  Release("b", "1");
  store_.OthersBefore("b", 1);
  JobMemory memory;
  memory.generation = 1;
  std::future<bool> written = std::async(
      std::launch::async, [&] { return pins_.PutJob("a", "1", memory, ServerItself()).ok(); });
  EXPECT_EQ(written.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  store_.Open();
  EXPECT_TRUE(written.get());
}

}  // namespace
}  // namespace bucketd
