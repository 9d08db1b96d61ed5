// Where a replica looks for whoever has a job, and what it says of that in the end.
#include "server/rpc/job_routes.h"

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "prometheus/registry.h"

#include "passes/base/digest.h"
#include "proto/plan.pb.h"
#include "server/base/errors.h"
#include "server/base/metrics.h"
#include "server/jobs/pin_index.h"
#include "server/jobs/pins.h"
#include "server/plans/stored_plans.h"
#include "server/replica.h"
#include "server/rpc/forwarded.h"
#include "server/rpc/peer_jobs.h"
#include "server/store/crash_point.h"
#include "server/store/sqlite_store.h"
#include "server/store/store_metrics.h"
#include "tests/server/forwarding_store.h"

namespace bucketd {
namespace {

absl::Mutex marks_mutex(absl::kConstInit);
std::function<void(absl::string_view)> at_marks;

// `then` is called at each mark that is passed from now on.
void AtMarks(std::function<void(absl::string_view)> then) {
  const absl::MutexLock lock(&marks_mutex);
  at_marks = std::move(then);
}

}  // namespace

// In the place of the product's, which does nothing.
void CrashPoint(const char* place) {
  std::function<void(absl::string_view)> then;
  {
    const absl::MutexLock lock(&marks_mutex);
    then = at_marks;
  }
  if (then) then(place);
}

namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

class Away final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::StatusOr<std::optional<std::string>> GetRecord(Shelf shelf,
                                                       absl::string_view key) override {
    if (away) return Nowhere();
    return ForwardingStore::GetRecord(shelf, key);
  }
  absl::StatusOr<Standing> PutIfAbsent(Shelf shelf, absl::string_view key, absl::string_view value,
                                       ReadBehind* behind) override {
    if (away) return Nowhere();
    return ForwardingStore::PutIfAbsent(shelf, key, value, behind);
  }
  absl::StatusOr<std::vector<Record>> ListRecords(Shelf shelf, absl::string_view prefix,
                                                  absl::string_view from, int32_t limit) override {
    looks += shelf == Shelf::kReplicas ? 1 : 0;
    return ForwardingStore::ListRecords(shelf, prefix, from, limit);
  }
  static absl::Status Nowhere() {
    return absl::UnavailableError("postgres://db-1/bucketd: cannot connect");
  }
  bool away = false;
  int looks = 0;  // for replicas
};

// Whoever is asked has one answer: there is no route to it, unless a test says otherwise.
class OneAnswer final : public PeerCalls {
 public:
  explicit OneAnswer(WorkerPool& pool) : pool_(pool) {}
  std::shared_ptr<Call> Forward(const std::string&, v1::ForwardRequest request, SteadyTime,
                                Done<v1::ForwardReply> done) override {
    const bool is_second = request.with_plan() && with_plan.has_value();
    pool_.TrySubmit([this, is_second, done = std::move(done)] {
      done(is_second ? absl::StatusOr<v1::ForwardReply>(*with_plan) : answer);
    });
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

  absl::StatusOr<v1::ForwardReply> answer = absl::UnavailableError("no route");
  std::optional<v1::ForwardReply> with_plan;  // to who wants the bytes; else the same

 private:
  struct Nothing final : Call {
    void Cancel() override {}
  };
  WorkerPool& pool_;
};

SteadyTime Now() { return std::chrono::steady_clock::now(); }

class JobRoutesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (Membership* member : {&members_, &others_, &members_}) ASSERT_TRUE(member->Beat().ok());
    call_.request = std::make_shared<const std::string>();
    for (int job = 0; members_.HashedOwner(JobLease("", call_.job).key) == members_.self(); ++job) {
      call_.job = absl::StrCat("job ", job);
    }
    call_.deadline = Now() + milliseconds(400);
    store_.away = true;  // so the other replica is asked
  }
  void TearDown() override {
    timers_.Stop();
    pool_.Stop();
    uploads_.Stop();
    AtMarks(nullptr);
  }

  const std::unique_ptr<SqliteStore> engine_ = *SqliteStore::Open({});
  Away store_{*engine_};
  prometheus::Registry registry_;
  ClusterMetrics cluster_metrics_{registry_};
  ServerMetrics metrics_{registry_};
  Membership members_{store_, {"a:1", 1}, std::chrono::hours(1), Now};
  Membership others_{store_, {"b:1", 1}, std::chrono::hours(1), Now};
  Leases leases_{store_, members_, cluster_metrics_, Now};
  StoreMetrics store_metrics_{registry_};
  PlanCache cache_{1 << 20, metrics_};
  Quotas quotas_{"", {}, registry_};
  GraphStore graphs_{1 << 20, metrics_, quotas_};
  Timers timers_;
  StoredPlans stored_plans_{{store_, store_metrics_, cache_, timers_, quotas_}};
  WorkerPool pool_{1, 99}, uploads_{1, 99};
  OneAnswer peers_{pool_};
  std::function<void(const RanksCall&)> here_ = [](const RanksCall&) {};
  JobRoutes routes_{{leases_, members_, cluster_metrics_, peers_, timers_, pool_, uploads_, cache_,
                     stored_plans_, graphs_,
                     [this](const RanksCall& call, const JobRoutes::Done&) -> uint64_t {
                       here_(call);
                       return 1;
                     },
                     [](uint64_t) {}, 99}};
  RanksCall call_;
};

TEST_F(JobRoutesTest, WhoCouldNotBeAskedIsToldOfTheStoreAndOfTheOtherReplica) {
  std::promise<absl::Status> told;
  routes_.GetPlan(call_, [&](const JobRoutes::Answer& answer) { told.set_value(answer.status()); });
  const absl::Status why = told.get_future().get();
  EXPECT_EQ(ReasonOf(why), "DEADLINE");
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("the replica at b:1 cannot be asked: no route"),
                    HasSubstr("postgres://db-1/bucketd: cannot connect")));
  EXPECT_EQ(routes_.Trouble(), "cannot ask the replica at b:1: no route");
}

// The pins of a scope come with the lease of its job, to calls of that scope; who has the lease
// already is told nothing of them, since they may be others by now.
TEST_F(JobRoutesTest, WhatIsKeptOfAScopeComesWithTheLeaseAndOnlyThen) {
  store_.away = false;
  call_.scope = "fw";
  ASSERT_TRUE(store_.PutRecord(Shelf::kPins, PinKey("", call_.job, "fw"), "a pin", nullptr).ok());
  const auto ask = [&](const std::string& scope) {
    std::promise<RanksCall> came;
    here_ = [&](const RanksCall& call) { came.set_value(call); };
    call_.scope = scope;
    routes_.GetPlan(call_, [](const JobRoutes::Answer&) {});
    return came.get_future().get().records;
  };
  const std::shared_ptr<const ScopeRecords> first = ask("fw");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->scope, "fw");
  ASSERT_EQ(first->values.size(), 2u);
  EXPECT_EQ(*first->values[0], std::nullopt);
  EXPECT_EQ(*first->values[1], "a pin");
  EXPECT_EQ(ask("fw"), nullptr);
  EXPECT_EQ(ask("bw"), nullptr);
}

TEST_F(JobRoutesTest, WhatIsKeptOfOneScopeIsNotTakenForAnothers) {
  store_.away = false;
  std::promise<void> begun, goes_on, both;
  pool_.TrySubmit([&] {
    begun.set_value();
    goes_on.get_future().wait();
  });
  begun.get_future().wait();
  std::map<std::string, std::shared_ptr<const ScopeRecords>> came;
  here_ = [&](const RanksCall& call) {
    came[call.scope] = call.records;
    if (came.size() == 2) both.set_value();
  };
  for (const char* scope : {"fw", "bw"}) {
    call_.scope = scope;
    routes_.GetPlan(call_, [](const JobRoutes::Answer&) {});
  }
  goes_on.set_value();
  both.get_future().wait();
  EXPECT_NE(came["fw"], nullptr);
  EXPECT_EQ(came["bw"], nullptr);
}

// What was agreed on without a pin goes to thousands with its bytes.
TEST(ForwardReplyTest, RepliesShareThePlansBytes) {
  const PlanReplyPtr plan = EncodePlanReply(std::string(300, 'p'), "its key");
  const JobRoutes::Answer answer = PlanAnswer{PlanOutcome::kComputed, plan, 0, {}, false};
  const grpc::ByteBuffer bytes =
      BytesOf(ForwardReplyOf(answer, std::nullopt), PlanBeside(answer, /*with_plan=*/false));
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(bytes.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(reinterpret_cast<const char*>(slices[1].begin()), PlanBytesOf(*plan).data());
  std::string whole;
  for (const grpc::Slice& slice : slices) whole.append(slice.begin(), slice.end());
  v1::ForwardReply reply;
  ASSERT_TRUE(reply.ParseFromString(whole));
  EXPECT_EQ(reply.plan().key(), "its key");
  EXPECT_EQ(reply.plan().plan(), PlanBytesOf(*plan));
  EXPECT_EQ(reply.plan().plan_sha256(), AsBytes(plan->plan_sha256));
}

// A store that is slow, and not away, takes leases back one by one for as long as there are some.
TEST_F(JobRoutesTest, WhoEndsHasLeftBeforeTheStoreHasTakenItsLeasesBack) {
  store_.away = false;
  ServerOptions options;
  options.cluster_address = "c:1";
  prometheus::Registry registry;
  Replica replica({options, store_, registry, timers_, cache_, stored_plans_, graphs_, peers_,
                   [](const RanksCall&, const JobRoutes::Done&) -> uint64_t { return 0; },
                   [](uint64_t) {}, nullptr});
  replica.Start();
  const LeaseName lease = JobLease("", "its job");
  ASSERT_TRUE(replica.leases().Take(lease).ok());
  std::promise<void> gives_back, left;
  AtMarks([&](absl::string_view mark) {
    if (mark == "leave: written") left.set_value();
    if (mark != "lease: to be given back") return;
    gives_back.set_value();
    EXPECT_EQ(left.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  });
  replica.HandOver([] {});
  gives_back.get_future().wait();
  ASSERT_TRUE(others_.Beat().ok());
  EXPECT_THAT(others_.List(),
              Contains(AllOf(Field(&ReplicaView::id, ReplicaId{"c:1", replica.incarnation()}),
                             Field(&ReplicaView::state, ReplicaState::kDraining))))
      << "which is said before anything is given back";
  replica.Stop();
  ASSERT_TRUE(others_.Beat().ok());
  EXPECT_TRUE(*others_.IsGone({"c:1", replica.incarnation()}));
}

// Whose plan it would have to be is known by its call alone.
TEST_F(JobRoutesTest, APlanWhoseCallEndsAsItComesIsNotCached) {
  call_.deadline = Now() + std::chrono::hours(1);
  v1::ForwardReply reply;
  reply.mutable_plan()->set_key("another tenant's");
  reply.mutable_plan()->set_plan("a plan");
  reply.mutable_plan()->set_plan_sha256(std::string(AsBytes(Sha256("a plan"))));
  peers_.answer = reply;
  std::promise<JobRoutes::CallId> asked;
  std::promise<void> ended;
  AtMarks([&](absl::string_view mark) {
    if (mark != "forward: answer came") return;
    routes_.Cancel(asked.get_future().get());
    ended.set_value();
  });
  asked.set_value(routes_.GetPlan(call_, [](const JobRoutes::Answer&) {}));
  ended.get_future().wait();
  pool_.Stop();  // behind what came
  EXPECT_EQ(cache_.Get("another tenant's"), nullptr);
}

// A plan of that graph, as the store keeps it.
std::string StoredPlanOf(const Digest& graph, const std::string& mode) {
  v1::Plan plan;
  plan.set_format_version(1);
  plan.set_graph_digest(std::string(AsBytes(graph)));
  plan.set_node_count(1);
  plan.set_numerics(v1::NUMERICS_FREE);
  plan.mutable_provenance()->set_mode(mode);
  return plan.SerializeAsString();
}

TEST_F(JobRoutesTest, WhatTheStoreHasIsAnsweredIfItIsAPlanOfTheGraphAndTheOneThatIsNamed) {
  call_.deadline = Now() + std::chrono::hours(1);
  call_.graph = Sha256("graph");
  const std::string key =
      absl::StrCat("bucketd plan key 2\ntenant=\"\"\ngraph=\"", ToHex(call_.graph), "\"\n");
  const std::string plan = StoredPlanOf(call_.graph, "auto");
  peers_.with_plan.emplace().set_error(
      SerializeRpcStatus(MakeError(Reason::kPlanImpossible, "and there is none")));
  const auto ask = [&](const std::string& named, const std::string& stored) {
    EXPECT_TRUE(store_.PutPlan(key, "", stored).ok());
    v1::ForwardReply reply;
    reply.mutable_plan()->set_key(key);
    reply.mutable_plan()->set_plan_sha256(std::string(AsBytes(Sha256(named))));
    peers_.answer = reply;
    std::promise<JobRoutes::Answer> came;
    routes_.GetPlan(call_, [&](const JobRoutes::Answer& answer) { came.set_value(answer); });
    return came.get_future().get();
  };
  const std::string foreign = StoredPlanOf(Sha256("another graph"), "auto");
  for (const std::string& stored : {std::string("no plan"), foreign}) {
    EXPECT_EQ(ReasonOf(ask(stored, stored).status()), "PLAN_IMPOSSIBLE");
    EXPECT_EQ(cache_.Get(key), nullptr);
    EXPECT_EQ(*store_.GetPlan(key), std::nullopt) << "nobody else is to find it";
  }
  EXPECT_EQ(ReasonOf(ask(StoredPlanOf(call_.graph, "none"), plan).status()), "PLAN_IMPOSSIBLE");
  EXPECT_EQ(cache_.Get(key), nullptr);
  const JobRoutes::Answer answer = ask(plan, plan);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(PlanBytesOf(*answer->reply), plan);
  EXPECT_EQ(cache_.Get(key), answer->reply);
}

TEST(PeerJobsTest, TrainersReleasesLookForReplicasOnceAPeriodAndAnOperatorsEachTime) {
  const auto engine = *SqliteStore::Open({});
  Away store(*engine);
  Membership members(store, {"a:1", 1}, std::chrono::hours(1), Now);
  WorkerPool pool(1, 99);
  OneAnswer peers(pool);
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
  const auto after = [&](int s) { return start + std::chrono::seconds(s); };
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
