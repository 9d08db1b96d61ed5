// Rank agreement: all ranks of a scope get the same plan or the same error.
#include <stdlib.h>

#include "tests/server/agreement_fixture.h"

namespace bucketd {
namespace {

// ---- agreement

TEST_F(AgreementTest, AllRanksGetTheSameBytesFromOneComputationAndOneUpload) {
  StartServer();
  Calls calls = AllRanks(ForwardGraph(), {});
  const std::string plan = PlanOfAll(calls);
  EXPECT_EQ(plan, GetPlan(RequestFor(ForwardGraph())).response.plan().plan());
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 1);
  EXPECT_EQ(Metric("bucketd_uploads_total", "outcome", "stored"), 1);
  EXPECT_EQ(Agreements("agreed"), 1);
  EXPECT_EQ(Metric("bucketd_pins"), 1);
  EXPECT_TRUE(EventuallyRanksWait(0));
}

TEST_F(AgreementTest, NobodyIsAnsweredUntilTheLastRankHasCome) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  Calls calls;
  for (const uint32_t r : {0U, 1U, 3U}) calls.push_back(Rank(ForwardGraph(), {}, {r}));
  ASSERT_TRUE(EventuallyRanksWait(3));
  // The plan is there, meanwhile; the ranks are not.
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_plan_cache_entries") == 1; }));
  // Another job agrees twice: whatever might be under way for this one is over by then.
  for (const char* scope : {"0/0/fw", "0/0/bw"}) {
    EXPECT_TRUE(GetPlan(JobRequest(ForwardGraph(), {.id = "other", .scope = scope, .size = 1}, {0}))
                    .status.ok());
  }
  EXPECT_EQ(Metric("bucketd_agreement_waiting_ranks"), 3);
  EXPECT_EQ(Agreements("agreed"), 2);
  calls.push_back(Rank(ForwardGraph(), {}, {2}));
  EXPECT_NE(PlanOfAll(calls), "");
}

TEST_F(AgreementTest, OneCallSpeaksForAllRanksOfANode) {
  StartServer();
  Calls calls;
  calls.push_back(Rank(ForwardGraph(), {.size = 16}, {0, 1, 2, 3, 4, 5, 6, 7}));
  calls.push_back(Rank(ForwardGraph(), {.size = 16}, {15, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_NE(PlanOfAll(calls), "");
  EXPECT_EQ(Agreements("agreed"), 1);
}

TEST_F(AgreementTest, CallsWithoutAJobDoNotWait) {
  StartServer();
  std::future<Reply> rank = Rank(ForwardGraph(), {}, {0});
  ASSERT_TRUE(EventuallyRanksWait(1));
  EXPECT_TRUE(RankCall(ForwardGraph(), RequestFor(ForwardGraph())).response.has_plan());
  server_->BeginDrain();
  EXPECT_EQ(ReasonOf(rank.get().status), "DRAINING") << "the others will go to another server";
}

TEST_F(AgreementTest, ARankThatCallsAgainGetsTheSameBytesAndOneWithAnotherGraphIsRefusedAlone) {
  StartServer();
  Calls calls = AllRanks(ForwardGraph(), {});
  const std::string plan = PlanOfAll(calls);
  const Reply again = GetPlan(JobRequest(ForwardGraph(), {}, {2}));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.response.plan().plan(), plan);
  const Reply other = GetPlan(JobRequest(ChangedGraph(), {}, {2}));
  EXPECT_EQ(ReasonOf(other.status), "RANKS_DIFFER");
  EXPECT_TRUE(StrContains(other.status.error_message(), ToHex(ForwardGraph().digest).substr(0, 12)))
      << other.status.error_message();
  EXPECT_TRUE(StrContains(other.status.error_message(), "rank 2")) << other.status.error_message();
  EXPECT_TRUE(GetPlan(JobRequest(ForwardGraph(), {}, {1})).status.ok());
}

TEST_F(AgreementTest, TheNextRankIsAskedWhenALeaderIsKilledInTheMiddleOfItsUpload) {
  options_.upload_lease = std::chrono::minutes(10);
  options_.upload_resume = milliseconds(0);
  StartServer();
  const JobSpec spec{.size = 3};
  ASSERT_TRUE(GetPlan(JobRequest(ForwardGraph(), spec, {0})).asked_to_upload());
  OpenUpload upload(*stub_, HeaderFor(ForwardGraph()));
  ASSERT_TRUE(upload.Send(Zstd(ForwardGraph().bytes).substr(0, 100)));
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_upload_received_bytes_total") == 100; }));
  Calls calls;
  calls.push_back(Rank(ForwardGraph(), spec, {1}));
  calls.push_back(Rank(ForwardGraph(), spec, {2}));
  ASSERT_TRUE(EventuallyRanksWait(2));
  EXPECT_FALSE(upload.Cancel().ok());
  ASSERT_TRUE(
      Eventually([&] { return Metric("bucketd_uploads_total", "outcome", "stored") == 1; }));
  calls.push_back(Rank(ForwardGraph(), spec, {0}));  // restarted by its launcher
  EXPECT_NE(PlanOfAll(calls), "");
}

TEST_F(AgreementTest, TheLeaseOfALeaderThatNeverUploadsRunsOutAndTheNextRankIsAsked) {
  options_.upload_lease = milliseconds(50);
  StartServer();
  const JobSpec spec{.size = 2};
  ASSERT_TRUE(GetPlan(JobRequest(ForwardGraph(), spec, {0})).asked_to_upload());
  Calls calls;
  calls.push_back(Rank(ForwardGraph(), spec, {1}));
  ASSERT_TRUE(
      Eventually([&] { return Metric("bucketd_uploads_total", "outcome", "stored") == 1; }));
  calls.push_back(Rank(ForwardGraph(), spec, {0}));
  EXPECT_NE(PlanOfAll(calls), "");
}

TEST_F(AgreementTest, GraphsThatRideAlongAreTakenAndABadOneHarmsItsSenderAlone) {
  StartServer();
  const auto inline_call = [&](const TestGraph& sent, uint32_t rank) {
    v1::GetPlanRequest request = JobRequest(ForwardGraph(), {.size = 2}, {rank});
    *request.mutable_graph() = InlineRequestFor(sent).graph();
    return request;
  };
  const Reply bad = GetPlan(inline_call(ChangedGraph(), 0));
  EXPECT_EQ(ReasonOf(bad.status), "DIGEST_MISMATCH");
  Calls calls;
  for (const uint32_t rank : {0U, 1U}) {
    calls.push_back(GetPlanAsync(inline_call(ForwardGraph(), rank)));
  }
  EXPECT_NE(PlanOfAll(calls), "");
  EXPECT_EQ(Metric("bucketd_uploads_total"), 0);
}

TEST_F(AgreementTest, AFailureToPlanIsTheSameForAllAndAllMayTryAgain) {
  plan_function_ = [](const Graph&, const PlanRequest&) -> absl::StatusOr<std::string> {
    return absl::InternalError("out of ideas");
  };
  StartServer();
  for (int attempt = 0; attempt < 2; ++attempt) {
    Calls calls = AllRanks(ForwardGraph(), {});
    EXPECT_TRUE(StrContains(ErrorOfAll(calls).error_message(), "out of ideas"));
    EXPECT_EQ(Agreements("failed"), attempt + 1);
  }
}

// BUCKETD_RANKS=10000 for more.
TEST_F(AgreementTest, AThousandRanksOnFourConnectionsAgree) {
  const char* wanted = getenv("BUCKETD_RANKS");
  const uint32_t ranks = wanted == nullptr ? 1000 : static_cast<uint32_t>(atoi(wanted));
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  std::vector<std::unique_ptr<v1::Planner::Stub>> stubs;
  for (int i = 0; i < 4; ++i) stubs.push_back(NewStub());
  struct Call {
    grpc::ClientContext context;
    v1::GetPlanRequest request;
    v1::GetPlanResponse response;
  };
  std::vector<Call> calls(ranks);
  std::mutex mutex;
  std::condition_variable changed;
  uint32_t answered = 0;
  Digest first{};
  int others = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t r = 0; r < ranks; ++r) {
    Call& call = calls[r];
    call.request = JobRequest(ForwardGraph(), {.size = ranks}, {r});
    call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(4));
    stubs[r % 4]->async()->GetPlan(&call.context, &call.request, &call.response,
                                   [&, r](const grpc::Status& status) {
                                     const Digest digest = Sha256(calls[r].response.plan().plan());
                                     calls[r].response.Clear();
                                     const std::lock_guard lock(mutex);
                                     if (answered++ == 0) first = digest;
                                     if (!status.ok() || digest != first) ++others;
                                     if (answered == ranks) changed.notify_all();
                                   });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return answered == ranks; });
  EXPECT_EQ(others, 0);
  EXPECT_NE(first, Sha256(""));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", absl::StrCat(took.count()));
}

// ---- ranks that differ

TEST_F(AgreementTest,
       RanksWithAnotherGraphAreNamedWithTheFirstDifferingNodeAndTwoUploadsAreEnough) {
  StartServer();
  const JobSpec spec{.size = 8};
  Calls calls;
  for (uint32_t r = 0; r < 8; ++r) {
    calls.push_back(Rank(r == 3 ? ChangedGraph() : ForwardGraph(), spec, {r}));
  }
  const grpc::Status error = ErrorOfAll(calls);
  EXPECT_EQ(ReasonOf(error), "RANKS_DIFFER");
  EXPECT_EQ(error.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const std::string& text = error.error_message();
  EXPECT_TRUE(StrContains(
      text, absl::StrCat("rank 3 presented graph ", ToHex(ChangedGraph().digest).substr(0, 12))))
      << text;
  EXPECT_TRUE(StrContains(text, absl::StrCat("ranks 0-2 and 4-7 presented graph ",
                                             ToHex(ForwardGraph().digest).substr(0, 12))))
      << text;
  EXPECT_TRUE(StrContains(text, absl::StrCat("first differ at node ", ChangedNode(), " "))) << text;
  EXPECT_TRUE(StrContains(text, "flops is ")) << text;
  EXPECT_EQ(MetadataOf(error, "node"), absl::StrCat(ChangedNode()));
  EXPECT_EQ(Metric("bucketd_uploads_total", "outcome", "stored"), 2);
  EXPECT_EQ(Agreements("differ"), 1);
  EXPECT_EQ(Metric("bucketd_pins"), 0);
}

TEST_F(AgreementTest, TheGraphsOfPlansThatAreStoredAreAskedForWhenRanksDiffer) {
  options_.store_dir = absl::StrCat(folder_, "/store");
  StartServer();
  ASSERT_TRUE(RankCall(ForwardGraph(), RequestFor(ForwardGraph())).response.has_plan());
  ASSERT_TRUE(RankCall(ChangedGraph(), RequestFor(ChangedGraph())).response.has_plan());
  Restart();
  // The plans are here and the graphs are not: nobody would have asked for those.
  Calls calls;
  calls.push_back(Rank(ForwardGraph(), {.size = 2}, {0}));
  calls.push_back(Rank(ChangedGraph(), {.size = 2}, {1}));
  const grpc::Status error = ErrorOfAll(calls);
  EXPECT_EQ(ReasonOf(error), "RANKS_DIFFER");
  EXPECT_EQ(MetadataOf(error, "node"), absl::StrCat(ChangedNode())) << error.error_message();
}

TEST_F(AgreementTest, DifferingOptionsAndMeshesAreNamedByField) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const JobSpec spec{.size = 2};
  v1::GetPlanRequest one = JobRequest(ForwardGraph(), spec, {0});
  v1::GetPlanRequest two = JobRequest(ForwardGraph(), spec, {1});
  one.mutable_options()->set_prefetch_forward(3);
  two.mutable_mesh()->mutable_dims(0)->set_link_class("ib");
  Calls calls;
  calls.push_back(GetPlanAsync(one));
  calls.push_back(GetPlanAsync(two));
  const grpc::Status error = ErrorOfAll(calls);
  EXPECT_EQ(ReasonOf(error), "RANKS_DIFFER");
  EXPECT_TRUE(StrContains(error.error_message(), "prefetch_forward is \"3\" against \"1\""))
      << error.error_message();
  EXPECT_TRUE(StrContains(error.error_message(), "mesh.dim.link_class is \"\" against \"ib\""))
      << error.error_message();
}

TEST_F(AgreementTest, ADifferenceWhoseGraphNeverComesIsReportedWithoutItsNode) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const JobSpec spec{.size = 2};
  Calls calls;
  calls.push_back(Rank(ForwardGraph(), spec, {0}));
  ASSERT_TRUE(EventuallyRanksWait(1));
  // Asked for its graph, to plan and to compare; always comes back without it.
  calls.push_back(std::async(std::launch::async, [&] {
    Reply reply;
    for (int round = 0; round < 4; ++round) {
      reply = GetPlan(JobRequest(ChangedGraph(), spec, {1}));
      if (!reply.asked_to_upload()) break;
    }
    return reply;
  }));
  const grpc::Status error = ErrorOfAll(calls);
  EXPECT_EQ(ReasonOf(error), "RANKS_DIFFER");
  EXPECT_EQ(MetadataOf(error, "node"), "");
}

// ---- bounds

TEST_F(AgreementTest, MoreWaitingRanksThanTheLimitAreRefusedWithIt) {
  options_.max_waiting_ranks = 2;
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  Calls calls;
  for (const uint32_t r : {0U, 1U}) calls.push_back(Rank(ForwardGraph(), {.size = 3}, {r}));
  ASSERT_TRUE(EventuallyRanksWait(2));
  const Reply refused = GetPlan(JobRequest(ForwardGraph(), {.size = 3}, {2}));
  EXPECT_EQ(ReasonOf(refused.status), "OVERLOADED");
  EXPECT_EQ(MetadataOf(refused.status, "limit"), "2");
  EXPECT_GT(RetryDelayMillis(refused.status), 0) << "it may come again";
  EXPECT_EQ(Metric("bucketd_agreement_waiting_ranks"), 2) << "those that wait have their places";
  server_->BeginDrain();  // ends what waits, however patient it is
  EXPECT_EQ(ReasonOf(ErrorOfAll(calls)), "DRAINING");
}

TEST_F(AgreementTest, AJobHasABoundedNumberOfScopesAGeneration) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const auto call = [&](uint64_t generation, int scope) {
    return GetPlan(JobRequest(
        ForwardGraph(),
        {.generation = generation, .scope = absl::StrCat("0/", scope, "/fw"), .size = 1}, {0}));
  };
  for (int scope = 0; scope < 4096; ++scope) ASSERT_TRUE(call(1, scope).status.ok()) << scope;
  const Reply beyond = call(1, 4096);
  EXPECT_EQ(ReasonOf(beyond.status), "JOB_INVALID");
  EXPECT_EQ(MetadataOf(beyond.status, "limit"), "4096");
  EXPECT_TRUE(StrContains(beyond.status.error_message(), "at most 4096 scopes"));
  EXPECT_TRUE(call(1, 4095).response.has_plan()) << "those that are there go on";
  EXPECT_TRUE(call(2, 4096).response.has_plan()) << "a new generation begins with none";
}

TEST_F(AgreementTest, JobsThatNobodyWaitsForMakeRoomAndOthersDoNot) {
  options_.max_jobs = 1;
  StartServer();
  Calls calls = AllRanks(ForwardGraph(), {.id = "done"});
  ASSERT_NE(PlanOfAll(calls), "");
  std::future<Reply> waiting = Rank(ForwardGraph(), {.id = "waits", .size = 2}, {0});
  ASSERT_TRUE(EventuallyRanksWait(1));
  EXPECT_EQ(Metric("bucketd_agreement_jobs"), 1);
  EXPECT_EQ(ReasonOf(GetPlan(JobRequest(ForwardGraph(), {.id = "late"}, {0})).status),
            "OVERLOADED");
  EXPECT_TRUE(Rank(ForwardGraph(), {.id = "waits", .size = 2}, {1}).get().status.ok());
  EXPECT_TRUE(waiting.get().status.ok());
}

TEST_F(AgreementTest, ATenantWhoseJobsFillTheServerKeepsNoOtherOneOut) {
  options_.max_jobs = 2;
  StartServer();
  const auto of_b = [](const std::string& id) {
    v1::GetPlanRequest request = JobRequest(ForwardGraph(), {.id = id, .size = 2}, {0});
    request.set_tenant("team-b");
    *request.mutable_graph() = InlineRequestFor(ForwardGraph()).graph();
    return request;
  };
  Calls calls;
  for (const char* id : {"1", "2"}) {
    calls.push_back(GetPlanAsync(of_b(id)));
    ASSERT_TRUE(EventuallyRanksWait(static_cast<int>(calls.size())));
  }
  EXPECT_EQ(ReasonOf(GetPlan(of_b("3")).status), "OVERLOADED");
  Calls ours = AllRanks(ForwardGraph(), {.id = "ours"});
  EXPECT_NE(PlanOfAll(ours), "");
  const Reply gave_way = calls[1].get();
  EXPECT_EQ(ReasonOf(gave_way.status), "OVERLOADED") << gave_way.status.error_message();
  EXPECT_GT(RetryDelayMillis(gave_way.status), 0) << "it may come again";
  EXPECT_EQ(Metric("bucketd_displaced_total", "what", "job"), 1);
  server_->BeginDrain();
  EXPECT_EQ(ReasonOf(calls[0].get().status), "DRAINING");
}

TEST_F(AgreementTest, TheSameNamesOfTwoTenantsAreTwoJobs) {
  StartServer();
  v1::GetPlanRequest mine = JobRequest(ForwardGraph(), {.generation = 7, .size = 1}, {0});
  v1::GetPlanRequest yours = mine;
  yours.set_tenant("yours");
  yours.mutable_job()->set_generation(3);
  EXPECT_TRUE(RankCall(ForwardGraph(), mine).response.has_plan());
  const Reply reply = GetPlan(yours);
  EXPECT_TRUE(reply.asked_to_upload()) << reply.status.error_message();
}

}  // namespace
}  // namespace bucketd
