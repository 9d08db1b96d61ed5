// Rank agreement: ranks that do not come, leave, are late, or are none.
#include "proto/admin.grpc.pb.h"
#include "tests/server/agreement_fixture.h"

namespace bucketd {
namespace {

// ---- ranks that are missing

// What they are told, and when, is the machine's: agreement_deadlines_test.cc.
TEST_F(AgreementTest, ARankAloneIsToldAtItsDeadlineWhoIsMissing) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const grpc::Status error = GetPlanInVain(JobRequest(ForwardGraph(), {.size = 2}, {0})).status;
  EXPECT_EQ(ReasonOf(error), "RANKS_MISSING");
  EXPECT_EQ(error.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(StrContains(error.error_message(), "rank 1 of 2 did not present scope 0/0/fw within"))
      << error.error_message();
  const Reply late = GetPlan(JobRequest(ForwardGraph(), {.size = 2}, {1}));
  EXPECT_EQ(late.status.error_message(), error.error_message());
  EXPECT_EQ(Agreements("missing"), 1);
  Calls again = AllRanks(ForwardGraph(), {.size = 2});
  EXPECT_NE(PlanOfAll(again), "");
}

TEST_F(AgreementTest, ARankThatLeavesIsNotPresent) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  Calls others;
  others.push_back(Rank(ForwardGraph(), {.size = 3}, {1}));
  ASSERT_TRUE(EventuallyRanksWait(1));
  grpc::ClientContext context;
  const v1::GetPlanRequest request = JobRequest(ForwardGraph(), {.size = 3}, {0});
  std::future<grpc::Status> left = std::async(std::launch::async, [&] {
    v1::GetPlanResponse response;
    return stub_->GetPlan(&context, request, &response);
  });
  ASSERT_TRUE(EventuallyRanksWait(2));
  context.TryCancel();
  EXPECT_EQ(left.get().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(EventuallyRanksWait(1));
  others.push_back(Rank(ForwardGraph(), {.size = 3}, {2}));
  ASSERT_TRUE(EventuallyRanksWait(2)) << "and nobody is answered";
  others.push_back(Rank(ForwardGraph(), {.size = 3}, {0}));
  EXPECT_NE(PlanOfAll(others), "");
}

TEST_F(AgreementTest, WhenThePlanIsLateARankIsToldWhatItWaitedFor) {
  plan_function_ = gate_.Guard(ComputePlan);
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const grpc::Status error = GetPlanInVain(JobRequest(ForwardGraph(), {.size = 1}, {0})).status;
  EXPECT_EQ(ReasonOf(error), "DEADLINE");
  EXPECT_TRUE(StrContains(error.error_message(), "being computed")) << error.error_message();
  gate_.Open();
  Calls again = AllRanks(ForwardGraph(), {.size = 1});
  EXPECT_NE(PlanOfAll(again), "");
}

TEST_F(AgreementTest, ACallThatIsRepeatedWaitsBesideTheFirst) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  Calls calls;
  for (int i = 0; i < 3; ++i) calls.push_back(Rank(ForwardGraph(), {.size = 2}, {0}));
  ASSERT_TRUE(EventuallyRanksWait(1));
  const Reply other = GetPlan(JobRequest(ChangedGraph(), {.size = 2}, {0}));
  EXPECT_EQ(ReasonOf(other.status), "JOB_INVALID");
  EXPECT_TRUE(
      StrContains(other.status.error_message(), "rank 0 of scope 0/0/fw is waiting already"));
  v1::GetPlanRequest bad = JobRequest(ForwardGraph(), {.size = 2}, {0});
  bad.mutable_options()->set_mode("fastest");
  EXPECT_EQ(ReasonOf(GetPlan(bad).status), "OPTIONS_INVALID");
  EXPECT_EQ(Metric("bucketd_agreement_waiting_ranks"), 1);
  calls.push_back(Rank(ForwardGraph(), {.size = 2}, {1}));
  EXPECT_NE(PlanOfAll(calls), "");
}

TEST_F(AgreementTest, ARankWhoseCallCannotBeServedIsNamedToAllAtOnce) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  v1::GetPlanRequest bad = JobRequest(ForwardGraph(), {.size = 3}, {1});
  bad.mutable_options()->set_mode("fastest");
  for (const bool it_is_first : {true, false}) {
    Calls calls;
    const auto refused = [&] { calls.push_back(GetPlanAsync(bad)); };
    if (it_is_first) {
      refused();
      calls.back().wait();
    }
    calls.push_back(Rank(ForwardGraph(), {.size = 3}, {0}));
    if (!it_is_first) {
      ASSERT_TRUE(EventuallyRanksWait(1));
      refused();
      calls.back().wait();
    }
    calls.push_back(Rank(ForwardGraph(), {.size = 3}, {2}));
    const grpc::Status error = ErrorOfAll(calls);
    EXPECT_EQ(ReasonOf(error), "OPTIONS_INVALID");
    EXPECT_TRUE(StrContains(error.error_message(), "scope 0/0/fw: rank 1 was refused: "))
        << error.error_message();
    EXPECT_TRUE(StrContains(error.error_message(), "fastest")) << error.error_message();
  }
  EXPECT_EQ(Agreements("failed"), 2);
  Calls again = AllRanks(ForwardGraph(), {.size = 3});
  EXPECT_NE(PlanOfAll(again), "") << "once all have heard of it";
  // What is agreed on stays so.
  EXPECT_EQ(ReasonOf(GetPlan(bad).status), "OPTIONS_INVALID");
  Calls more = AllRanks(ForwardGraph(), {.size = 3});
  EXPECT_NE(PlanOfAll(more), "");
}

TEST_F(AgreementTest, ARefusedRankDoesNotTakeAwayWhatItsGenerationHasPinned) {
  options_.store_dir = absl::StrCat(folder_, "/store");
  StartServer();
  Calls calls = AllRanks(ForwardGraph(), {.size = 2});
  const std::string plan = PlanOfAll(calls);
  Restart();
  v1::GetPlanRequest bad = JobRequest(ForwardGraph(), {.size = 2}, {1});
  bad.mutable_options()->set_mode("fastest");
  EXPECT_EQ(ReasonOf(GetPlan(bad).status), "OPTIONS_INVALID");
  const Reply other = GetPlan(JobRequest(ForwardGraph(), {.size = 2}, {0}));
  ASSERT_TRUE(other.status.ok()) << other.status.error_message();
  EXPECT_EQ(other.response.plan().plan(), plan);
}

TEST_F(AgreementTest, RanksThatComeWhileComputeSlotsAreFullAndArePatientSeeNothingOfIt) {
  plan_function_ = gate_.Guard(ComputePlan);
  options_.compute_slots = 1;
  options_.compute_queue = 0;
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  ASSERT_TRUE(Upload(ChangedGraph()).ok());
  std::future<Reply> busy = GetPlanAsync(RequestFor(ChangedGraph()));
  gate_.WaitUntilEntered(1);
  const grpc::Status error = GetPlanInVain(JobRequest(ForwardGraph(), {.size = 1}, {0})).status;
  EXPECT_EQ(ReasonOf(error), "OVERLOADED");
  EXPECT_GT(RetryDelayMillis(error), 0);
  EXPECT_TRUE(StrContains(error.error_message(), "compute slots")) << error.error_message();
  EXPECT_GE(Agreements("failed"), 1);
  Calls patient = AllRanks(ForwardGraph(), {.id = "patient"});
  ASSERT_TRUE(EventuallyRanksWait(4));
  gate_.Open();
  EXPECT_NE(PlanOfAll(patient), "");
  EXPECT_TRUE(busy.get().status.ok());
}

// ---- generations

TEST_F(AgreementTest, AHigherGenerationEndsTheLowerOne) {
  StartServer();
  Calls old;
  old.push_back(Rank(ForwardGraph(), {.generation = 4}, {0}));
  old.push_back(Rank(ForwardGraph(), {.generation = 4}, {1}));
  ASSERT_TRUE(
      Eventually([&] { return Metric("bucketd_uploads_total", "outcome", "stored") == 1; }));
  ASSERT_TRUE(EventuallyRanksWait(2));
  Calls fresh = AllRanks(ForwardGraph(), {.generation = 5});
  EXPECT_NE(PlanOfAll(fresh), "");
  EXPECT_EQ(ReasonOf(ErrorOfAll(old)), "GENERATION_OVER");
  EXPECT_EQ(Agreements("superseded"), 1);
  const Reply late = GetPlan(JobRequest(ForwardGraph(), {.generation = 4}, {2}));
  EXPECT_EQ(ReasonOf(late.status), "GENERATION_OVER");
  EXPECT_TRUE(StrContains(late.status.error_message(), "generation 5"));
  EXPECT_EQ(MetadataOf(late.status, "limit"), "5");
  EXPECT_EQ(MetadataOf(late.status, "actual"), "4");
}

TEST_F(AgreementTest, WhilePlanningIsOffNewGenerationsAreUnplannedAndRunningOnesGoOn) {
  options_.store_dir = absl::StrCat(folder_, "/store");
  StartServer();
  Calls running = AllRanks(ForwardGraph(), {.id = "runs", .size = 2});
  const std::string plan = PlanOfAll(running);
  const auto set_planning = [&](bool enabled) {
    grpc::ClientContext context;
    v1::SetPlanningRequest request;
    v1::SetPlanningResponse response;
    request.set_enabled(enabled);
    request.set_why(enabled ? "" : "the fabric is being serviced");
    const grpc::Status set =
        v1::Admin::NewStub(NewChannel())->SetPlanning(&context, request, &response);
    EXPECT_TRUE(set.ok()) << set.error_message();
  };
  const auto why = [&](const JobSpec& spec, uint32_t rank) {
    const Reply reply = GetPlan(JobRequest(ForwardGraph(), spec, {rank}));
    EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
    return reply.response.unplanned().why();
  };
  set_planning(false);
  const JobSpec fresh{.id = "new", .generation = 3, .size = 2};
  EXPECT_EQ(why(fresh, 0), "the fabric is being serviced") << "without waiting for rank 1";
  // What runs may recompile.
  Calls recompiled = AllRanks(ForwardGraph(), {.id = "runs", .scope = "0/1/fw", .size = 2});
  EXPECT_EQ(PlanOfAll(recompiled), plan);
  // The other ranks of that generation get the same, whenever they come.
  set_planning(true);
  EXPECT_EQ(why(fresh, 1), "the fabric is being serviced");
  EXPECT_EQ(why({.id = "new", .generation = 3, .scope = "0/9/bw", .size = 2}, 1),
            "the fabric is being serviced");
  Restart();
  EXPECT_EQ(why(fresh, 1), "the fabric is being serviced");
  Calls next = AllRanks(ForwardGraph(), {.id = "new", .generation = 4, .size = 2});
  EXPECT_EQ(PlanOfAll(next), plan);
}

TEST_F(AgreementTest, JobsThatAreNoneAreRefusedWithThePlace) {
  StartServer();
  const auto refused = [&](const v1::GetPlanRequest& request) {
    const Reply reply = GetPlan(request);
    EXPECT_EQ(ReasonOf(reply.status), "JOB_INVALID") << reply.status.error_message();
    return reply.status.error_message();
  };
  EXPECT_TRUE(StrContains(refused(JobRequest(ForwardGraph(), {}, {4})), "4 of a scope of 4"));
  EXPECT_TRUE(StrContains(refused(JobRequest(ForwardGraph(), {}, {1, 2, 1})), "1 is there twice"));
  EXPECT_TRUE(StrContains(refused(JobRequest(ForwardGraph(), {}, {})), "no rank"));
  EXPECT_TRUE(StrContains(refused(JobRequest(ForwardGraph(), {.size = 0}, {})), "job.size"));
  EXPECT_TRUE(StrContains(refused(JobRequest(ForwardGraph(), {.size = 131'073}, {0})), "131072"));
  EXPECT_TRUE(StrContains(refused(JobRequest(ForwardGraph(), {.id = ""}, {0})), "job.id"));
  EXPECT_TRUE(StrContains(
      refused(JobRequest(ForwardGraph(), {.scope = std::string(257, 'x')}, {0})), "job.scope"));
  EXPECT_TRUE(
      StrContains(refused(JobRequest(ForwardGraph(), {.scope = "a\nb"}, {0})), "job.scope"));
  v1::GetPlanRequest cached_only = JobRequest(ForwardGraph(), {}, {0});
  cached_only.set_cached_only(true);
  EXPECT_TRUE(StrContains(refused(cached_only), "cached_only"));
  std::future<Reply> waiting =
      Rank(ForwardGraph(), {.scope = std::string(256, 'x'), .size = 2}, {0});
  ASSERT_TRUE(EventuallyRanksWait(1));
  EXPECT_TRUE(StrContains(
      refused(JobRequest(ForwardGraph(), {.scope = std::string(256, 'x'), .size = 3}, {1})),
      "has 2 ranks"));
  EXPECT_TRUE(
      Rank(ForwardGraph(), {.scope = std::string(256, 'x'), .size = 2}, {1}).get().status.ok());
  EXPECT_TRUE(waiting.get().status.ok());
}

}  // namespace
}  // namespace bucketd
