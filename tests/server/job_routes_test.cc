// Where a replica looks for whoever has a job, and what it says of that in the end.
#include "server/rpc/job_routes.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "prometheus/registry.h"

#include "server/base/errors.h"
#include "server/base/metrics.h"
#include "server/rpc/peer_jobs.h"
#include "server/store/sqlite_store.h"
#include "tests/server/forwarding_store.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Away final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                       absl::string_view key) override {
    if (away) return absl::UnavailableError("postgres://db-1/bucketd: cannot connect");
    return ForwardingStore::GetRecord(shelf, key);
  }
  absl::StatusOr<std::vector<Record>> ListRecords(Shelf shelf, absl::string_view prefix,
                                                  absl::string_view after, int32_t limit) override {
    looks += shelf == Shelf::kReplicas ? 1 : 0;
    return ForwardingStore::ListRecords(shelf, prefix, after, limit);
  }
  bool away = false;
  int looks = 0;  // for replicas
};

class NobodyAnswers final : public PeerCalls {
 public:
  explicit NobodyAnswers(WorkerPool& pool) : pool_(pool) {}
  std::shared_ptr<Call> Forward(const std::string&, v1::ForwardRequest, SteadyTime,
                                Done<v1::ForwardReply> done) override {
    pool_.TrySubmit([done = std::move(done)] { done(absl::UnavailableError("no route")); });
    return std::make_shared<Nothing>();
  }
  void ShowJobs(const std::string&, v1::ShowJobsRequest, SteadyTime,
                Done<v1::ShowJobsReply>) override {}
  void ForgetJobs(const std::string&, v1::ForgetJobsRequest, SteadyTime,
                  Done<v1::ForgetJobsReply> done) override {
    done(absl::UnavailableError("no route"));
  }
  absl::Status BringGraph(const std::string&, const std::string&, const Digest&, const Graph&,
                          SteadyTime) override {
    return absl::OkStatus();
  }
  void KeepOnly(const std::set<std::string>&) override {}
  void Stop() override {}

 private:
  struct Nothing final : Call {
    void Cancel() override {}
  };
  WorkerPool& pool_;
};

SteadyTime Now() { return std::chrono::steady_clock::now(); }

TEST(JobRoutesTest, WhoCouldNotBeAskedIsToldOfTheStoreAndOfTheOtherReplica) {
  const auto engine = *SqliteStore::Open({});
  Away store(*engine);
  prometheus::Registry registry;
  ClusterMetrics cluster_metrics(registry);
  ServerMetrics metrics(registry);
  Membership members(store, {"a:1", 1}, std::chrono::hours(1), Now);
  Membership others(store, {"b:1", 1}, std::chrono::hours(1), Now);
  for (Membership* member : {&members, &others, &members}) ASSERT_TRUE(member->Beat().ok());
  Leases leases(store, members, cluster_metrics, Now);
  PlanCache cache(1 << 20, metrics);
  GraphStore graphs(1 << 20, metrics);
  Timers timers;
  WorkerPool pool(1, 99), uploads(1, 99);
  NobodyAnswers peers(pool);
  const auto ask_here = [](const RanksCall&, const JobRoutes::Done&) -> uint64_t { return 1; };
  JobRoutes routes({leases, members, cluster_metrics, peers, timers, pool, uploads, cache, graphs,
                    store, ask_here, [](uint64_t) {}, 99});
  RanksCall call;
  call.request = std::make_shared<const std::string>();
  for (int job = 0; members.HashedOwner(JobLease("", call.job).key) == members.self(); ++job) {
    call.job = absl::StrCat("job ", job);
  }
  call.deadline = Now() + milliseconds(400);
  store.away = true;
  std::promise<absl::Status> told;
  routes.GetPlan(call, [&](const JobRoutes::Answer& answer) { told.set_value(answer.status()); });
  const absl::Status why = told.get_future().get();
  EXPECT_EQ(ReasonOf(why), "DEADLINE");
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("the replica at b:1 cannot be asked: no route"),
                    HasSubstr("postgres://db-1/bucketd: cannot connect")));
  EXPECT_EQ(routes.Trouble(), "cannot ask the replica at b:1: no route");
  timers.Stop();
  pool.Stop();
  uploads.Stop();
}

TEST(PeerJobsTest, TrainersReleasesLookForReplicasOnceAPeriodAndAnOperatorsEachTime) {
  const auto engine = *SqliteStore::Open({});
  Away store(*engine);
  Membership members(store, {"a:1", 1}, std::chrono::hours(1), Now);
  WorkerPool pool(1, 99);
  NobodyAnswers peers(pool);
  PeerJobs jobs(members, peers);
  v1::ForgetJobsRequest forget;
  for (int i = 0; i < 5; ++i) jobs.Forget(forget);
  EXPECT_EQ(store.looks, 1);
  forget.set_by_operator(true);
  for (int i = 0; i < 5; ++i) jobs.Forget(forget);
  EXPECT_EQ(store.looks, 6);
  Membership hurried(store, {"b:1", 1}, milliseconds(0), Now);
  PeerJobs often(hurried, peers);
  forget.set_by_operator(false);
  for (int i = 0; i < 5; ++i) often.Forget(forget);
  EXPECT_EQ(store.looks, 11);
}

TEST(UnreachedTest, AReplicaIsNamedForAMinuteOrUntilItAnswers) {
  const SteadyTime start = Now();
  const auto after = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  Unreached unreached;
  EXPECT_EQ(unreached.InWords(start), "");
  unreached.Failed("a:1", "no route", start);
  unreached.Failed("b:1", "UNIMPLEMENTED", after(20));
  EXPECT_EQ(
      unreached.InWords(after(59)),
      "cannot ask the replica at a:1: no route; cannot ask the replica at b:1: UNIMPLEMENTED");
  EXPECT_EQ(unreached.InWords(after(70)), "cannot ask the replica at b:1: UNIMPLEMENTED");
  unreached.Answered("b:1");
  EXPECT_EQ(unreached.InWords(after(70)), "");
  for (int i = 0; i < 1000; ++i) unreached.Failed(absl::StrCat("c:", i), "no", after(90));
  EXPECT_LT(unreached.InWords(after(90)).size(), 5000u) << "whatever addresses the store has";
}

}  // namespace
}  // namespace bucketd
