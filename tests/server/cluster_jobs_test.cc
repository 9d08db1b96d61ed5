// What operators see and do at one of three servers and mean of all: jobs, wherever their ranks
// wait. Servers that do not answer, or are older; and connections to those that are gone.
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "proto/admin.grpc.pb.h"
#include "server/admin/job_list.h"
#include "server/rpc/grpc_peer_calls.h"
#include "server/store/audit_trim.h"
#include "tests/server/cluster_fixture.h"

namespace bucketd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

class ClusterJobsTest : public ClusterTest {
 protected:
  std::string Address(size_t which) const { return absl::StrCat("unix:", folder_, "/", which); }

  v1::UnpinJobResponse Unpin(size_t which, const std::string& job, bool pattern = false,
                             const std::string& tenant = "") {
    v1::UnpinJobRequest request;
    request.set_tenant(tenant);
    request.set_job_id(job);
    request.set_pattern(pattern);
    v1::UnpinJobResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        v1::Admin::NewStub(ChannelTo(which))->UnpinJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  v1::ListJobsResponse List(size_t which, const v1::ListJobsRequest& request = {}) {
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        v1::Admin::NewStub(ChannelTo(which))->ListJobs(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  // Who tells whether a job that a rank asks for knows of a later generation.
  Reply AskAlone(size_t which, const std::string& job, uint64_t generation) {
    return AskRank(which, {.id = job, .generation = generation, .size = 1}, 0).get();
  }
  // So that no rank is away with its graph when it is to wait.
  void PlanOnce() { EXPECT_TRUE(AskAlone(2, "planned", 1).response.has_plan()); }
  bool EventuallyKnows(size_t which, int replicas) {
    return Eventually(
        [&] { return MetricOf(which, "bucketd_replicas", "state", "serving") == replicas; });
  }
};

v1::JobStatus Row(const std::string& job, uint64_t generation, const std::string& state,
                  const std::string& replica, bool has_lease) {
  v1::JobStatus row;
  row.set_id(job);
  row.set_generation(generation);
  row.set_scope("0/fw");
  row.set_state(state);
  row.set_replica(replica);
  row.set_has_lease(has_lease);
  return row;
}

TEST(JobListTest, OfAScopeThatSeveralRememberTheOneWhereItsJobIsStands) {
  std::vector<v1::JobStatus> jobs = {
      Row("moved", 3, "agreed", "a", false),  Row("moved", 3, "agreed", "b", true),
      Row("older", 9, "agreed", "a", false),  Row("older", 1, "agreed", "b", true),
      Row("away", 3, "waiting", "a", false),  Row("away", 3, "failed", "b", true),
      Row("nobody", 2, "agreed", "a", false), Row("nobody", 4, "failed", "b", false),
  };
  KeepOncePerScope(jobs);
  std::vector<std::string> kept;
  for (const v1::JobStatus& job : jobs) kept.push_back(absl::StrCat(job.id(), " ", job.replica()));
  EXPECT_THAT(kept, ElementsAre("away a", "moved b", "nobody b", "older b"));
}

TEST(JobListTest, AnotherTenantsRowsAreNotKept) {
  std::vector<v1::JobStatus> jobs = {Row("job", 1, "agreed", "a", true)};
  jobs.push_back(jobs[0]);
  jobs[1].set_tenant("other");
  v1::ShowJobsRequest asked;
  asked.set_limit(10);
  asked.set_tenant("other");
  EXPECT_FALSE(KeepAsked(asked, jobs));
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_EQ(jobs[0].tenant(), "other");
}

// The server that is asked has none of the ranks, and has not looked at the others since they came.
TEST_F(ClusterJobsTest, AReleaseIsHeardByRanksWhereverTheyWait) {
  StartThree();
  PlanOnce();
  const JobSpec spec{.size = 3};
  std::future<Reply> first = AskRank(1, spec, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(1, 1));
  std::future<Reply> second = AskRank(2, spec, 1);
  ASSERT_TRUE(EventuallyWaitingRanks(1, 2));
  const v1::UnpinJobResponse done = Unpin(0, "train");
  EXPECT_THAT(done.not_reached(), IsEmpty());
  for (std::future<Reply>* rank : {&first, &second}) {
    const Reply told = rank->get();
    EXPECT_EQ(ReasonOf(told.status), "OVERLOADED");
    EXPECT_THAT(told.status.error_message(), HasSubstr("an operator released the job"));
  }
}

TEST_F(ClusterJobsTest, WhatIsReleasedIsForgottenByAllAndAuditedOnce) {
  StartThree();
  ASSERT_TRUE(AskAlone(1, "train", 5).response.has_plan());
  EXPECT_EQ(ReasonOf(AskAlone(1, "train", 4).status), "GENERATION_OVER");
  EXPECT_EQ(MetricOf(1, "bucketd_pins"), 1);
  const v1::UnpinJobResponse done = Unpin(0, "train");
  EXPECT_EQ(done.released(), 1);
  EXPECT_EQ(MetricOf(1, "bucketd_pins"), 0) << "its tenant has room for another one at once";
  EXPECT_THAT(done.not_reached(), IsEmpty());
  v1::ListAuditRequest audit;
  audit.set_what("release");
  v1::ListAuditResponse lines;
  grpc::ClientContext context;
  ASSERT_TRUE(v1::Admin::NewStub(ChannelTo(2))->ListAudit(&context, audit, &lines).ok());
  std::set<std::string> subjects;
  for (const v1::AuditEntry& line : lines.entries()) subjects.insert(line.subject());
  EXPECT_EQ(subjects.size(), static_cast<size_t>(lines.entries_size()));
  EXPECT_GE(lines.entries_size(), 1);
  EXPECT_TRUE(AskAlone(1, "train", 1).response.has_plan()) << "it begins anew";
}

TEST_F(ClusterJobsTest, AJobThatItsTrainerReleasesIsForgottenByAllUnlessRanksWait) {
  StartThree();
  ASSERT_TRUE(AskAlone(1, "ended", 5).response.has_plan());
  std::future<Reply> waits = AskRank(1, {.id = "waits", .size = 2}, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(1, 1));
  for (const char* job : {"ended", "waits"}) {
    v1::ReleaseJobRequest release;
    release.set_job_id(job);
    v1::ReleaseJobResponse released;
    grpc::ClientContext context;
    ASSERT_TRUE(v1::Planner::NewStub(ChannelTo(2))->ReleaseJob(&context, release, &released).ok());
  }
  EXPECT_TRUE(AskAlone(1, "ended", 1).response.has_plan());
  EXPECT_EQ(MetricOf(1, "bucketd_agreement_waiting_ranks"), 1);
  EXPECT_TRUE(AskRank(0, {.id = "waits", .size = 2}, 1).get().status.ok());
  EXPECT_TRUE(waits.get().status.ok());
}

// They have a bound of their own in the audit log.
TEST_F(ClusterJobsTest, LinesThatCallsCauseAreKnownByTheirWordsAndAnOperatorsIsNone) {
  StartThree();
  for (const char* job : {"ended", "taken"}) {
    ASSERT_TRUE(AskAlone(1, job, 5).response.has_plan());
  }
  v1::ReleaseJobRequest release;
  release.set_job_id("ended");
  v1::ReleaseJobResponse released;
  grpc::ClientContext context;
  ASSERT_TRUE(v1::Planner::NewStub(ChannelTo(1))->ReleaseJob(&context, release, &released).ok());
  EXPECT_EQ(Unpin(0, "taken").released(), 1);
  v1::ListAuditResponse lines;
  grpc::ClientContext asking;
  ASSERT_TRUE(v1::Admin::NewStub(ChannelTo(2))->ListAudit(&asking, {}, &lines).ok());
  std::set<std::string> caused, done;
  for (const v1::AuditEntry& line : lines.entries()) {
    (IsCausedByCalls(line.what()) ? caused : done)
        .insert(absl::StrCat(line.what(), " ", line.subject()));
  }
  EXPECT_THAT(caused,
              IsSupersetOf({"generation ended", "pin ended, 0/0/fw", "finish ended",
                            "finish ended, 0/0/fw", "generation taken", "pin taken, 0/0/fw"}));
  EXPECT_THAT(done, ElementsAre("release taken", "release taken, 0/0/fw"));
}

TEST_F(ClusterJobsTest, APatternMeansTheJobsOfAllReplicasAndOfOneTenant) {
  StartThree();
  ASSERT_TRUE(AskAlone(2, "sweep-1", 5).response.has_plan());
  std::vector<std::future<Reply>> waiting;
  const auto wait = [&](const std::string& job, const std::string& tenant) {
    v1::GetPlanRequest request = JobRequest(ForwardGraph(), {.id = job, .size = 2}, {0});
    request.set_tenant(tenant);
    waiting.push_back(Ask(1, ForwardGraph(), request));
    ASSERT_TRUE(EventuallyWaitingRanks(1, static_cast<int>(waiting.size())));
  };
  wait("sweep-2", "");
  wait("other", "");
  wait("sweep-2", "team");
  const v1::UnpinJobResponse done = Unpin(0, "sweep-*", /*pattern=*/true);
  EXPECT_EQ(done.jobs(), 2);
  EXPECT_EQ(done.released(), 1);
  EXPECT_FALSE(done.more());
  EXPECT_EQ(ReasonOf(waiting[0].get().status), "OVERLOADED");
  EXPECT_TRUE(EventuallyWaitingRanks(1, 2)) << "others wait, or upload what their tenant lacks";
  EXPECT_TRUE(AskAlone(2, "sweep-1", 1).response.has_plan());
  Unpin(0, "*", /*pattern=*/true);
  Unpin(2, "sweep-2", /*pattern=*/false, "team");
  EXPECT_EQ(ReasonOf(waiting[1].get().status), "OVERLOADED");
  EXPECT_EQ(ReasonOf(waiting[2].get().status), "OVERLOADED");
}

TEST_F(ClusterJobsTest, AnyServerListsTheJobsOfAllOfThemEachOnce) {
  StartThree();
  ASSERT_TRUE(EventuallyKnows(0, 3));
  PlanOnce();
  std::future<Reply> first = AskRank(1, {.id = "waits", .size = 3}, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(1, 1));
  std::future<Reply> second = AskRank(2, {.id = "waits", .size = 3}, 2);
  ASSERT_TRUE(EventuallyWaitingRanks(1, 2));
  const v1::ListJobsResponse all = List(0);
  EXPECT_THAT(all.not_reached(), IsEmpty());
  ASSERT_THAT(all.jobs(), SizeIs(2));
  EXPECT_EQ(all.jobs(0).id(), "waits");
  EXPECT_EQ(all.jobs(0).arrived(), 2);
  EXPECT_THAT(all.jobs(0).missing(), ElementsAre(1));
  EXPECT_EQ(all.jobs(0).replica(), Address(1));
  EXPECT_TRUE(all.jobs(0).has_lease());
  EXPECT_EQ(all.jobs(1).replica(), Address(2));
  v1::ListJobsRequest one;
  one.set_limit(1);
  EXPECT_TRUE(List(0, one).truncated());
  one.set_limit(0);
  one.set_tenant("team");
  EXPECT_THAT(List(0, one).jobs(), IsEmpty());
  Unpin(0, "waits");
  first.get();
  second.get();
}

TEST_F(ClusterJobsTest, AnotherProcessThanIsMeantSaysSoAndForgetsNothing) {
  StartThree();
  PlanOnce();
  std::future<Reply> waits = AskRank(1, {.size = 2}, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(1, 1));
  const auto stub = v1::Peers::NewStub(ChannelTo(1));
  v1::ForgetJobsRequest forget;
  forget.add_job_id("train");
  forget.set_by_operator(true);
  forget.set_incarnation(IncarnationOf(1) + 1);
  v1::ForgetJobsReply forgotten;
  grpc::ClientContext one, two;
  EXPECT_EQ(stub->ForgetJobs(&one, forget, &forgotten).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(MetricOf(1, "bucketd_agreement_waiting_ranks"), 1);
  v1::ShowJobsRequest show;
  v1::ShowJobsReply shown;
  EXPECT_EQ(stub->ShowJobs(&two, show, &shown).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(AskRank(0, {.size = 2}, 1).get().status.ok());
  EXPECT_TRUE(waits.get().status.ok());
}

v1::ForwardReply HasNoJob(const v1::ForwardRequest&) {
  v1::ForwardReply reply;
  reply.mutable_moved();
  return reply;
}

// An older version, which has Forward alone.
TEST_F(ClusterJobsTest, WhoDoesNotKnowTheCallsIsNamed) {
  StartThree();
  const Liar older(folder_, "its", HasNoJob);
  ASSERT_TRUE(EventuallyKnows(0, 4));
  const v1::ListJobsResponse all = List(0);
  ASSERT_THAT(all.not_reached(), SizeIs(1));
  EXPECT_EQ(all.not_reached(0).address(), absl::StrCat("unix:", folder_, "/liar"));
  EXPECT_THAT(all.not_reached(0).why(), HasSubstr("older version"));
  EXPECT_THAT(Unpin(0, "train").not_reached(), SizeIs(1));
}

// Answers nothing, or with what is another tenant's, and with what it remembers of a job that
// another server has.
class Deaf final : public Liar {
 public:
  using Liar::Liar;
  grpc::Status ShowJobs(grpc::ServerContext* context, const v1::ShowJobsRequest*,
                        v1::ShowJobsReply* reply) override {
    *reply->add_jobs() = Row("theirs", 1, "waiting", "liar", true);
    reply->mutable_jobs(0)->set_tenant("other");
    *reply->add_jobs() = Row("train", 7, "agreed", "liar", false);
    reply->mutable_jobs(1)->set_scope("0/0/fw");
    return Wait(*context);
  }
  grpc::Status ForgetJobs(grpc::ServerContext* context, const v1::ForgetJobsRequest*,
                          v1::ForgetJobsReply*) override {
    return Wait(*context);
  }
  std::atomic<bool> answers{false};

 private:
  grpc::Status Wait(const grpc::ServerContext& context) const {
    while (!answers && !context.IsCancelled()) std::this_thread::sleep_for(milliseconds(10));
    return grpc::Status::OK;
  }
};

TEST_F(ClusterJobsTest, WhoDoesNotAnswerIsNamedAndHoldsNobodyUp) {
  StartThree();
  Deaf deaf(folder_, "its", HasNoJob);
  ASSERT_TRUE(EventuallyKnows(0, 4));
  ASSERT_TRUE(AskAlone(1, "train", 1).response.has_plan());
  const auto began = std::chrono::steady_clock::now();
  v1::ListJobsRequest own;
  own.set_tenant("");
  const v1::ListJobsResponse all = List(0, own);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(20));
  EXPECT_THAT(all.jobs(), SizeIs(1));
  ASSERT_THAT(all.not_reached(), SizeIs(1));
  EXPECT_THAT(all.not_reached(0).why(), HasSubstr("did not answer within 2 s"));
  const v1::UnpinJobResponse done = Unpin(0, "train");
  EXPECT_EQ(done.released(), 1);
  EXPECT_THAT(done.not_reached(), SizeIs(1));
  EXPECT_TRUE(AskAlone(1, "train", 1).response.has_plan());
  deaf.answers = true;
  const v1::ListJobsResponse heard = List(0, own);
  EXPECT_THAT(heard.not_reached(), IsEmpty());
  ASSERT_THAT(heard.jobs(), SizeIs(1));
  EXPECT_EQ(heard.jobs(0).id(), "train");
  EXPECT_EQ(heard.jobs(0).replica(), Address(1));
}

// ---- connections

// Server's ends of a Unix socket, this process's.
int ConnectionsTo(const std::string& path) {
  std::ifstream table("/proc/net/unix");
  int ends = -1;  // the one that listens
  for (std::string line; std::getline(table, line);) ends += absl::EndsWith(line, path) ? 1 : 0;
  return ends;
}

TEST_F(ClusterJobsTest, AConnectionToAReplicaThatIsGoneIsClosed) {
  options_.cluster_dead = milliseconds(1500);
  StartThree();
  const Liar gone(folder_, "its", HasNoJob);  // it never says that it lives
  std::future<Reply> rank = AskRank(0, {.id = "its", .size = 1}, 0);
  ASSERT_TRUE(Eventually([&] { return gone.asked() > 0; }));
  EXPECT_TRUE(rank.get().status.ok()) << "another one has the job then";
  EXPECT_TRUE(Eventually([&] { return ConnectionsTo(folder_ + "/liar") == 0; }));
}

class PeerConnectionsTest : public ClusterJobsTest {
 protected:
  void SetUp() override {
    ClusterJobsTest::SetUp();
    StartThree();
    address_ = absl::StrCat("unix:", folder_, "/liar");
  }
  std::future<absl::Status> Call(GrpcPeerCalls& peers) {
    const auto came = std::make_shared<std::promise<absl::Status>>();
    peers.Forward(
        address_, {}, std::chrono::steady_clock::now() + seconds(60),
        [came](const absl::StatusOr<v1::ForwardReply>& reply) { came->set_value(reply.status()); });
    return came->get_future();
  }
  // A call ends a moment after its answer.
  bool EventuallyClosed(GrpcPeerCalls& peers, const std::set<std::string>& members) {
    return Eventually([&] {
      peers.KeepOnly(members);
      return ConnectionsTo(folder_ + "/liar") == 0;
    });
  }

  std::string address_;
};

TEST_F(PeerConnectionsTest, TheyStayWhileTheyAreUsedAndTheReplicaIsThere) {
  std::atomic<bool> answers{true};
  const Liar there(folder_, "its", [&](const v1::ForwardRequest& request) {
    while (!answers) std::this_thread::sleep_for(milliseconds(10));
    return HasNoJob(request);
  });
  GrpcPeerCalls peers(nullptr, 10);
  ASSERT_TRUE(Call(peers).get().ok());
  peers.KeepOnly({address_});
  EXPECT_EQ(ConnectionsTo(folder_ + "/liar"), 1);
  answers = false;
  std::future<absl::Status> under_way = Call(peers);
  peers.KeepOnly({});
  EXPECT_EQ(ConnectionsTo(folder_ + "/liar"), 1);
  answers = true;
  EXPECT_TRUE(under_way.get().ok());
  EXPECT_TRUE(EventuallyClosed(peers, {}));
  EXPECT_TRUE(Call(peers).get().ok()) << "and another one is made";
}

TEST_F(PeerConnectionsTest, OneThatIsNotUsedIsClosed) {
  const Liar there(folder_, "its", HasNoJob);
  GrpcPeerCalls peers(nullptr, 10, /*idle=*/milliseconds(0));
  ASSERT_TRUE(Call(peers).get().ok());
  EXPECT_EQ(ConnectionsTo(folder_ + "/liar"), 1);
  EXPECT_TRUE(EventuallyClosed(peers, {address_}));
}

// Not by the next call, nor by its own last one: those run on gRPC's threads.
TEST_F(PeerConnectionsTest, OneOfCertificatesThatWereReplacedIsClosedByKeepOnly) {
  const Liar there(folder_, "its", HasNoJob);
  std::shared_ptr<const TlsFiles> files;
  GrpcPeerCalls peers([&] { return files; }, 10);
  ASSERT_TRUE(Call(peers).get().ok());
  files = std::make_shared<TlsFiles>();
  EXPECT_FALSE(Call(peers).get().ok()) << "TLS is not what the other one speaks";
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_GE(ConnectionsTo(folder_ + "/liar"), 1);
  EXPECT_TRUE(EventuallyClosed(peers, {address_}));
}

}  // namespace
}  // namespace bucketd
