// A generation whose cost profile has moved on since its plan was pinned.
#include <atomic>
#include <filesystem>

#include "tests/server/agreement_fixture.h"

namespace bucketd {
namespace {

CostProfile SlowLinks() {
  CostProfile profile = BuiltInProfiles()[0];
  profile.alpha_scale = 5.0;
  profile.busbw_scale = 0.03;
  profile.gamma_us = 20.0;
  return profile;
}

CostProfile AlmostTheSame() {
  CostProfile profile = BuiltInProfiles()[0];
  profile.gamma_us *= 1.001;
  return profile;
}

class NewProfileTest : public AgreementTest {
 protected:
  void SetUp() override {
    AgreementTest::SetUp();
    options_.store_dir = absl::StrCat(folder_, "/store");
  }
  std::string Agree(uint64_t generation, v1::PlanSource* source = nullptr,
                    milliseconds deadline = milliseconds(60'000)) {
    Calls calls =
        AllRanks(ForwardGraph(), {.generation = generation, .cost_profile = asked_, .mode = "auto"},
                 deadline);
    return PlanOfAll(calls, source);
  }
  double Replans(const std::string& outcome) {
    return Metric("bucketd_replans_total", "outcome", outcome);
  }
  void ExpectPinned(const std::string& plan, uint64_t generation,
                    milliseconds deadline = milliseconds(60'000)) {
    v1::PlanSource source{};
    EXPECT_TRUE(Agree(generation, &source, deadline) == plan);
    EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
  }

  std::string asked_ = "latest";
};

TEST_F(NewProfileTest, AMuchFasterPlanTakesThePinnedOnesPlaceForAllRanks) {
  StartServer();
  const std::string plan = Agree(1);
  ExpectPinned(plan, 2);
  EXPECT_EQ(Replans("kept"), 0) << "nothing has moved";
  const std::string now = Promote(SlowLinks());
  v1::PlanSource source{};
  const std::string better = Agree(3, &source);
  EXPECT_TRUE(better != plan);
  EXPECT_NE(source, v1::PLAN_SOURCE_PINNED);
  EXPECT_EQ(ProfileOf(better), now);
  EXPECT_EQ(Replans("replaced"), 1);
  // It is pinned from then on, in this generation and in the next.
  Restart();
  ExpectPinned(better, 3);
  ExpectPinned(better, 4);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 0);
}

TEST_F(NewProfileTest, AJobThatAskedForANameStaysWithIt) {
  for (const char* asked : {"", "h100_nvlink", "h100_nvlink@1"}) {
    asked_ = asked;
    StartServer();
    const std::string plan = Agree(1);
    Promote(SlowLinks());
    ExpectPinned(plan, 2);
    for (const char* outcome : {"replaced", "kept", "no_graph", "failed"}) {
      EXPECT_EQ(Replans(outcome), 0) << asked << " " << outcome;
    }
    std::filesystem::remove_all(options_.store_dir);
    StopServer();
  }
}

TEST_F(NewProfileTest, AGainBelowTheThresholdIsNoReasonToCompileAnew) {
  StartServer();
  const std::string plan = Agree(1);
  Promote(AlmostTheSame());
  ExpectPinned(plan, 2);
  EXPECT_EQ(Replans("kept"), 1);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 2) << "it was looked at";
  ExpectPinned(plan, 3);
  EXPECT_EQ(Replans("kept"), 2);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 2) << "in the cache";
}

TEST_F(NewProfileTest, TheThresholdIsAnOption) {
  options_.costs.replan_gain_ppm = 999'999;
  StartServer();
  const std::string plan = Agree(1);
  Promote(SlowLinks());
  ExpectPinned(plan, 2);
  EXPECT_EQ(Replans("kept"), 1);
  options_.costs.replan_gain_ppm = CostOptions::kNeverReplan;
  Restart();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  ExpectPinned(plan, 3);
  EXPECT_EQ(Replans("kept") + Replans("failed") + Replans("no_graph"), 0);
  options_.costs.replan_gain_ppm = 0;
  Restart();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  EXPECT_TRUE(Agree(4) != plan);
  EXPECT_EQ(Replans("replaced"), 1);
}

TEST_F(NewProfileTest, WhereTheGraphIsGoneNobodyIsAskedForIt) {
  StartServer();
  const std::string plan = Agree(1);
  Promote(SlowLinks());
  Restart();
  ExpectPinned(plan, 2);
  EXPECT_EQ(Replans("no_graph"), 1);
  EXPECT_EQ(Metric("bucketd_uploads_total"), 0);
}

TEST_F(NewProfileTest, AGraphThatRidesAlongIsAtHand) {
  StartServer();
  const std::string plan = Agree(1);
  const std::string now = Promote(SlowLinks());
  Restart();
  Calls calls;
  for (const uint32_t rank : {0U, 1U, 2U, 3U}) {
    v1::GetPlanRequest request = JobRequest(
        ForwardGraph(), {.generation = 2, .cost_profile = "latest", .mode = "auto"}, {rank});
    *request.mutable_graph() = InlineRequestFor(ForwardGraph()).graph();
    calls.push_back(GetPlanAsync(request));
  }
  EXPECT_EQ(ProfileOf(PlanOfAll(calls)), now);
}

TEST_F(NewProfileTest, WhereThePlannerFailsThePinnedPlanStays) {
  std::atomic<bool> fails{false};
  plan_function_ = [&](const Graph& graph, const PlanRequest& request) {
    return fails ? absl::InternalError("out of ideas") : ComputePlan(graph, request);
  };
  StartServer();
  const std::string plan = Agree(1);
  Promote(SlowLinks());
  fails = true;
  ExpectPinned(plan, 2);
  EXPECT_EQ(Replans("failed"), 1);
  fails = false;
  EXPECT_TRUE(Agree(3) != plan) << "the next generation tries again";
}

TEST_F(NewProfileTest, AComputationThatTakesTooLongMakesNobodyLate) {
  StartServer();
  const std::string plan = Agree(1);
  Promote(SlowLinks());
  server_.reset();
  plan_function_ = gate_.Guard(ComputePlan);
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  ExpectPinned(plan, 2, milliseconds(4000));
  EXPECT_EQ(Replans("failed"), 1);
  EXPECT_EQ(gate_.entered(), 1);
  gate_.Open();
  EXPECT_TRUE(Agree(3) != plan) << "what went on to be computed";
  EXPECT_EQ(gate_.entered(), 1);
}

TEST_F(NewProfileTest, RanksThatDifferAreToldSoWhilePlansAreWeighed) {
  StartServer();
  Agree(1);
  Promote(SlowLinks());
  server_.reset();
  plan_function_ = gate_.Guard(ComputePlan);
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  ASSERT_TRUE(Upload(ChangedGraph()).ok());
  const JobSpec spec{.generation = 2, .cost_profile = "latest", .mode = "auto"};
  Calls calls;
  calls.push_back(Rank(ForwardGraph(), spec, {0, 1, 2}));
  gate_.WaitUntilEntered(1);
  calls.push_back(Rank(ChangedGraph(), spec, {3}));
  EXPECT_EQ(ReasonOf(ErrorOfAll(calls)), "RANKS_DIFFER");
  gate_.Open();
}

}  // namespace
}  // namespace bucketd
