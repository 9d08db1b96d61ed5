// Three real servers on one folder: ranks of one job that come to different ones, graphs that are
// uploaded to one and wanted by another, a server that drains.
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "proto/admin.grpc.pb.h"
#include "tests/server/cluster_fixture.h"
#include "tests/server/full_disk.h"

namespace bucketd {
namespace {

using std::chrono::seconds;
using ::testing::SizeIs;

TEST_F(ClusterTest, NoServerForwardsMoreCallsThanMayWait) {
  StartThree([this](int which) { options_.max_waiting_ranks = which == 0 ? 100 : 2; });
  const JobSpec spec{.size = 5};
  Calls calls;
  calls.push_back(AskRank(0, spec, 0));  // which has the job now
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  for (const uint32_t rank : {1U, 2U}) calls.push_back(AskRank(1, spec, rank));
  ASSERT_TRUE(EventuallyWaitingRanks(0, 3));
  const Reply refused = AskRank(1, spec, 3).get();
  EXPECT_EQ(ReasonOf(refused.status), "OVERLOADED") << refused.status.error_message();
  EXPECT_EQ(MetadataOf(refused.status, "actual"), "") << "how many others there are";
  calls.push_back(AskRank(0, spec, 3));
  calls.push_back(AskRank(2, spec, 4));
  EXPECT_NE(PlanOfAll(calls), "");
}

TEST_F(ClusterTest, ATenantWhoseRanksHaveAllPlacesAtAServerKeepsNoOtherOneOut) {
  StartThree([this](int which) { options_.max_waiting_ranks = which == 0 ? 100 : 4; });
  const JobSpec spec{.size = 6};
  v1::GetPlanRequest of_b = JobRequest(ForwardGraph(), spec, {0});
  of_b.set_tenant("team-b");
  *of_b.mutable_graph() = InlineRequestFor(ForwardGraph()).graph();
  Calls calls;
  calls.push_back(Ask(0, ForwardGraph(), of_b));  // which has the job now
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  for (const uint32_t rank : {1U, 2U, 3U, 4U}) {
    of_b.mutable_job()->set_rank(0, rank);
    calls.push_back(Ask(1, ForwardGraph(), of_b));
    ASSERT_TRUE(EventuallyWaitingRanks(0, static_cast<int>(rank) + 1));
  }
  Calls ours;
  ours.push_back(AskRank(1, {.id = "ours", .size = 2}, 0));
  EXPECT_EQ(ReasonOf(calls[4].get().status), "OVERLOADED");
  ASSERT_TRUE(EventuallyWaitingRanks(1, 1)) << "it has the job, whoever is asked next";
  ours.push_back(AskRank(2, {.id = "ours", .size = 2}, 1));
  EXPECT_NE(PlanOfAll(ours), "");
  EXPECT_EQ(ReasonOf(calls[3].get().status), "OVERLOADED") << "each has two";
  EXPECT_EQ(MetricOf(1, "bucketd_displaced_total", "what", "rank"), 2);
  EXPECT_TRUE(EventuallyWaitingRanks(0, 3)) << "they are not present where their job is";
  DrainAll();
}

TEST_F(ClusterTest, ATenantWhoseJobsFillAServerKeepsNoOtherOneOut) {
  StartThree([this](int) { options_.max_jobs = 2; });
  Calls calls;
  for (const char* id : {"1", "2"}) {
    v1::GetPlanRequest of_b = JobRequest(ForwardGraph(), {.id = id, .size = 2}, {0});
    of_b.set_tenant("team-b");
    *of_b.mutable_graph() = InlineRequestFor(ForwardGraph()).graph();
    calls.push_back(Ask(0, ForwardGraph(), of_b));
    ASSERT_TRUE(EventuallyWaitingRanks(0, static_cast<int>(calls.size())));
  }
  EXPECT_TRUE(AskRank(0, {.id = "ours", .size = 1}, 0).get().response.has_plan());
  EXPECT_EQ(ReasonOf(calls[1].get().status), "OVERLOADED");
  EXPECT_EQ(MetricOf(0, "bucketd_displaced_total", "what", "job"), 1);
  DrainAll();
}

// Others look at the switch once a second; whoever begins behind the operator's answer is earlier.
TEST_F(ClusterTest, AGenerationThatBeginsBehindTheSwitchHasNoPlanWhoeverWasTold) {
  StartThree();
  const auto replies = [this](uint64_t generation) {
    const JobSpec spec{.generation = generation, .size = 2};
    std::future<Reply> first = AskRank(1, spec, 0);
    Reply second = AskRank(2, spec, 1).get();
    return std::array<Reply, 2>{first.get(), std::move(second)};
  };
  for (const Reply& reply : replies(1)) EXPECT_TRUE(reply.response.has_plan());
  v1::SetPlanningRequest off;
  off.set_why("a test");
  grpc::ClientContext context;
  v1::SetPlanningResponse told;
  ASSERT_TRUE(v1::Admin::NewStub(ChannelTo(0))->SetPlanning(&context, off, &told).ok());
  for (const Reply& reply : replies(2)) {
    EXPECT_TRUE(reply.response.has_unplanned()) << reply.status.error_message();
  }
}

TEST_F(ClusterTest, RanksThatComeToDifferentServersGetTheSameBytesAndOneComputation) {
  plan_function_ = gate_.Guard(ComputePlan);
  gate_.Open();
  StartThree();
  const JobSpec spec{.size = 6};
  Calls calls;
  for (uint32_t rank = 0; rank < spec.size; ++rank) calls.push_back(AskRank(rank % 3, spec, rank));
  EXPECT_NE(PlanOfAll(calls), "");
  EXPECT_EQ(gate_.entered(), 1);
  double plans = 0, held = 0;
  for (size_t i = 0; i < 3; ++i) {
    plans += MetricOf(i, "bucketd_forwarded_calls_total", "outcome", "plan");
    held += MetricOf(i, "bucketd_leases_held", "of", "job");
  }
  EXPECT_EQ(plans, 4) << "two servers do not have the job";
  EXPECT_EQ(held, 1);
}

TEST_F(ClusterTest, APlanThatAllServersAreAskedForIsComputedOnce) {
  plan_function_ = gate_.Guard(ComputePlan);
  StartThree();
  const v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
  Calls calls;
  for (size_t i = 0; i < 3; ++i) calls.push_back(Ask(i, ForwardGraph(), request));
  gate_.WaitUntilEntered(1);
  // The others have all that it takes to compute, and do not.
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(gate_.entered(), 1);
  gate_.Open();
  EXPECT_NE(PlanOfAll(calls), "");
  EXPECT_EQ(gate_.entered(), 1);
  EXPECT_TRUE(Eventually([&] {
    double held = 0;
    for (size_t i = 0; i < 3; ++i) held += MetricOf(i, "bucketd_leases_held", "of", "plan");
    return held == 0;
  }));
}

TEST_F(ClusterTest, RanksThatDifferAreToldTheSameWhereverTheyCameTo) {
  StartThree();
  const JobSpec spec{.size = 2};
  Calls calls;
  calls.push_back(AskRank(0, spec, 0));
  calls.push_back(Ask(1, ChangedGraph(), JobRequest(ChangedGraph(), spec, {1})));
  EXPECT_EQ(ReasonOf(ErrorOfAll(calls)), "RANKS_DIFFER");
}

TEST_F(ClusterTest, ACallThatCannotBeServedEndsTheWaitOfRanksElsewhere) {
  StartThree();
  const JobSpec spec{.size = 2};
  std::future<Reply> waits = AskRank(0, spec, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  v1::GetPlanRequest bad = JobRequest(ForwardGraph(), spec, {1});
  bad.mutable_options()->set_mode("no such mode");
  EXPECT_EQ(ReasonOf(Ask(1, ForwardGraph(), bad).get().status), "OPTIONS_INVALID");
  EXPECT_EQ(ReasonOf(waits.get().status), "OPTIONS_INVALID");
}

TEST_F(ClusterTest, ACallerWhoLeavesIsAbsentWhereItsJobIs) {
  StartThree();
  const JobSpec spec{.size = 3};
  std::future<Reply> first = AskRank(0, spec, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  {
    const auto stub = v1::Planner::NewStub(ChannelTo(1));
    grpc::ClientContext context;
    std::future<void> leaves = std::async(std::launch::async, [&] {
      v1::GetPlanResponse response;
      EXPECT_FALSE(stub->GetPlan(&context, JobRequest(ForwardGraph(), spec, {1}), &response).ok());
    });
    EXPECT_TRUE(EventuallyWaitingRanks(0, 2));
    context.TryCancel();
  }
  EXPECT_TRUE(EventuallyWaitingRanks(0, 1));
  Calls calls;
  calls.push_back(std::move(first));
  calls.push_back(AskRank(1, spec, 1));
  calls.push_back(AskRank(2, spec, 2));
  EXPECT_NE(PlanOfAll(calls), "");
}

TEST_F(ClusterTest, AGraphThatWasUploadedToAnotherServerIsBroughtToTheOneThatHasTheJob) {
  options_.upload_lease = milliseconds(300);
  StartThree();
  const JobSpec spec{.size = 2};
  const v1::GetPlanRequest request = JobRequest(ForwardGraph(), spec, {0});
  // The first rank is asked for the graph and does not bring it; the second one is asked then.
  const auto stub = v1::Planner::NewStub(ChannelTo(0));
  ASSERT_TRUE(AskOnce(*stub, request).asked_to_upload());
  Calls calls;
  calls.push_back(AskRank(1, spec, 1));
  ASSERT_TRUE(Eventually([&] { return MetricOf(1, "bucketd_graphs_brought_total") == 1; }));
  calls.push_back(AskRank(0, spec, 0));
  EXPECT_NE(PlanOfAll(calls), "");
  EXPECT_EQ(MetricOf(0, "bucketd_uploads_total", "outcome", "stored"), 1);
}

TEST_F(ClusterTest, AServerThatDrainsHandsItsJobsOver) {
  StartThree();
  const JobSpec spec{.size = 3};
  std::future<Reply> here = AskRank(0, spec, 0);
  // It has been asked for the graph, and is back: a server that drains takes none.
  ASSERT_TRUE(
      Eventually([&] { return MetricOf(0, "bucketd_uploads_total", "outcome", "stored") == 1; }));
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  std::future<Reply> forwarded = AskRank(1, spec, 1);
  ASSERT_TRUE(EventuallyWaitingRanks(0, 2));
  servers_[0]->BeginDrain();
  const Reply told = here.get();
  EXPECT_EQ(ReasonOf(told.status), "DRAINING");
  Calls calls;
  calls.push_back(std::move(forwarded));
  calls.push_back(AskRank(2, spec, 0));  // where it goes then
  calls.push_back(AskRank(2, spec, 2));
  EXPECT_NE(PlanOfAll(calls), "") << "who was not there never heard of it";
  EXPECT_EQ(MetricOf(0, "bucketd_leases_held", "of", "job"), 0);
  EXPECT_GE(MetricOf(1, "bucketd_calls_presented_anew_total"), 1);
}

TEST_F(ClusterTest, ALateRankGetsThePlanFromWhoeverHasTheJobNow) {
  StartThree();
  const JobSpec spec{.size = 2};
  Calls calls;
  calls.push_back(AskRank(0, spec, 0));
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  calls.push_back(AskRank(1, spec, 1));
  const std::string plan = PlanOfAll(calls);
  ASSERT_NE(plan, "");
  servers_[0]->Shutdown();
  for (const size_t which : {size_t{1}, size_t{2}}) {
    const Reply late = AskRank(which, spec, 0).get();
    ASSERT_TRUE(late.status.ok()) << late.status.error_message();
    EXPECT_EQ(late.response.plan().plan(), plan);
    EXPECT_EQ(late.source(), v1::PLAN_SOURCE_PINNED);
  }
}

TEST_F(ClusterTest, NobodyIsForwardedTwice) {
  StartThree();
  const JobSpec spec{.size = 2};
  std::future<Reply> first = AskRank(0, spec, 0);
  ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
  const v1::GetPlanRequest request = JobRequest(ForwardGraph(), spec, {1});
  const v1::ForwardReply another_process = Forward(0, 7, request);
  EXPECT_TRUE(another_process.has_moved());
  EXPECT_EQ(another_process.moved().holder(), "");
  const v1::ForwardReply has_not = Forward(1, IncarnationOf(1), request);
  EXPECT_EQ(has_not.moved().holder(), absl::StrCat("unix:", folder_, "/0"));
  EXPECT_EQ(has_not.moved().incarnation(), IncarnationOf(0));
  v1::GetPlanRequest none;
  const v1::ForwardReply refused = Forward(0, IncarnationOf(0), none);
  EXPECT_TRUE(refused.has_error()) << "it names no job";
  std::future<Reply> second = AskRank(1, spec, 1);
  EXPECT_TRUE(first.get().status.ok());
  EXPECT_TRUE(second.get().status.ok());
}

// Whoever has the job next would know nothing of it, so nobody else is to be asked for the bytes.
TEST_F(ClusterTest, WhatIsAgreedOnWithoutAPinIsForwardedWithItsBytes) {
  options_.max_pins_per_tenant = 1;
  StartThree();
  for (const bool is_pinned : {true, false}) {
    const JobSpec spec{.scope = is_pinned ? "0/0/fw" : "0/1/fw", .size = 2};
    std::future<Reply> first = AskRank(0, spec, 0);
    ASSERT_TRUE(EventuallyWaitingRanks(0, 1));
    const v1::GetPlanRequest request = JobRequest(ForwardGraph(), spec, {1});
    const v1::PlanReference together = Forward(0, IncarnationOf(0), request).plan();
    const v1::PlanReference later = Forward(0, IncarnationOf(0), request).plan();
    const std::string plan = first.get().response.plan().plan();
    ASSERT_NE(plan, "");
    EXPECT_EQ(together.plan_sha256(), std::string(AsBytes(Sha256(plan))));
    EXPECT_TRUE(together.plan() == (is_pinned ? "" : plan)) << spec.scope;
    EXPECT_TRUE(later.plan() == (is_pinned ? "" : plan)) << spec.scope;
  }
  EXPECT_EQ(MetricOf(0, "bucketd_agreements_unpinned_total", "reason", "quota"), 1);
}

// As far as a plan's key says whose it is.
std::string KeyBegin(const std::string& tenant, const Digest& graph) {
  return absl::StrCat("bucketd plan key 2\ntenant=\"", tenant, "\"\ngraph=\"", ToHex(graph),
                      "\"\n");
}

// `named`: whose SHA-256 is said to be the plan's. `bytes`: those that come along.
v1::ForwardReply PlanUnder(const std::string& key, const std::string& named,
                           const std::string& bytes) {
  v1::ForwardReply reply;
  reply.mutable_plan()->set_key(key);
  reply.mutable_plan()->set_plan_sha256(std::string(AsBytes(Sha256(named))));
  reply.mutable_plan()->set_plan(bytes);
  return reply;
}

// What cannot be true is not believed, and the job is somebody else's once the liar has ended: it
// never says that it lives.
TEST_F(ClusterTest, APeerThatLiesAboutAJobGivesNobodyAnotherPlan) {
  options_.cluster_dead = milliseconds(1500);
  StartThree();
  const JobSpec before{.id = "before", .size = 1};
  const std::string plan = AskRank(0, before, 0).get().response.plan().plan();
  ASSERT_NE(plan, "");
  const Digest& graph = ForwardGraph().digest;
  const auto its = [](const std::string& key, const std::string& named, const std::string& bytes) {
    return [=](const v1::ForwardRequest&) { return PlanUnder(key, named, bytes); };
  };
  const std::vector<Liar::Answer> lies = {
      its(KeyBegin("", graph), "one", "another"),    // not what they are said to be
      its(KeyBegin("", graph), "one", ""),           // a plan that nobody has
      its(KeyBegin("theirs", graph), "one", "one"),  // another tenant's
      its(KeyBegin("", Sha256("another graph")), "one", "one"),
      [this](const v1::ForwardRequest& request) {  // that itself has it, and has it not
        v1::ForwardReply reply;
        reply.mutable_moved()->set_holder(absl::StrCat("unix:", folder_, "/liar"));
        reply.mutable_moved()->set_incarnation(request.incarnation());
        return reply;
      },
      [](const v1::ForwardRequest&) { return v1::ForwardReply(); }};
  for (size_t i = 0; i < lies.size(); ++i) {
    const JobSpec spec{.id = absl::StrCat("job", i), .size = 2};
    const Liar liar(folder_, spec.id, lies[i]);
    Calls calls;
    for (uint32_t rank = 0; rank < 2; ++rank) calls.push_back(AskRank(rank, spec, rank));
    EXPECT_EQ(PlanOfAll(calls), plan) << i;
    EXPECT_GE(liar.asked(), 2) << i;
  }
}

TEST_F(ClusterTest, AReplicaThatIsCutOffFromTheStoreWantsPlansWithTheirBytes) {
  options_.cluster_dead = milliseconds(3000);
  StartThree();
  std::atomic<int> wanted{0};
  const Liar owner(folder_, "job", [&](const v1::ForwardRequest& request) {
    wanted += request.with_plan() ? 1 : 0;
    return PlanUnder(KeyBegin("", ForwardGraph().digest), "plan", "plan");
  });
  const JobSpec spec{.id = "job", .size = 1};
  EXPECT_EQ(AskRank(0, spec, 0).get().response.plan().plan(), "plan");
  EXPECT_EQ(wanted, 0);
  {
    const FullDisk full;
    ASSERT_TRUE(Eventually([&] { return MetricOf(0, "bucketd_replica_cut_off") == 1; }));
    EXPECT_EQ(AskRank(0, spec, 0).get().response.plan().plan(), "plan");
  }
  EXPECT_EQ(wanted, 1);
  EXPECT_EQ(owner.asked(), 2);
}

TEST_F(ClusterTest, TheStatusNamesAllReplicas) {
  StartThree();
  ASSERT_TRUE(Eventually([&] { return MetricOf(0, "bucketd_replicas", "state", "serving") == 3; }));
  grpc::ClientContext context;
  v1::GetStatusResponse status;
  ASSERT_TRUE(v1::Admin::NewStub(ChannelTo(0))->GetStatus(&context, {}, &status).ok());
  ASSERT_THAT(status.cluster().replicas(), SizeIs(3));
  EXPECT_TRUE(status.cluster().replicas(0).self());
  EXPECT_EQ(status.cluster().replicas(2).address(), absl::StrCat("unix:", folder_, "/2"));
  EXPECT_EQ(status.cluster().trouble(), "");
}

}  // namespace
}  // namespace bucketd
