// What jobs agreed on, across generations and restarts.
#include "passes/io/profile_json.h"
#include "proto/cost_service.grpc.pb.h"
#include "proto/plan.pb.h"
#include "tests/server/agreement_fixture.h"

namespace bucketd {
namespace {

// ---- pins

// A planner whose plans say which version made them.
PlanFunction Versioned(std::string version) {
  return [version](const Graph& graph, const PlanRequest& request) -> absl::StatusOr<std::string> {
    absl::StatusOr<std::string> plan = ComputePlan(graph, request);
    // An unknown field at the end: still a Plan.
    if (plan.ok())
      *plan += absl::StrCat("\xba\x7d", std::string(1, static_cast<char>(version.size())), version);
    return plan;
  };
}

class PinTest : public AgreementTest {
 protected:
  void SetUp() override {
    AgreementTest::SetUp();
    options_.store_dir = absl::StrCat(folder_, "/store");
  }
  std::string Agree(const JobSpec& spec, v1::PlanSource* source = nullptr) {
    Calls calls = AllRanks(ForwardGraph(), spec);
    return PlanOfAll(calls, source);
  }
};

TEST_F(PinTest, TheNextGenerationGetsThePinnedBytesAfterARestartAndAnUpgrade) {
  options_.plan_function = Versioned("one");
  StartServer();
  const std::string plan = Agree({.generation = 1});
  options_.plan_function = Versioned("two");
  Restart();
  EXPECT_EQ(Metric("bucketd_pins"), 1);
  v1::PlanSource source{};
  EXPECT_EQ(Agree({.generation = 2}, &source), plan);
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 0);
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "pinned"), 4);
  // Unless it asks for a fresh one; that is pinned from then on.
  const std::string fresh = Agree({.generation = 3, .fresh = true}, &source);
  EXPECT_NE(source, v1::PLAN_SOURCE_PINNED);
  Restart();
  EXPECT_EQ(Agree({.generation = 4}, &source), fresh);
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
}

TEST_F(PinTest, AfterARestartOneRankOfTheSameGenerationNeedNotWaitForTheOthers) {
  StartServer();
  const std::string plan = Agree({});
  options_.plan_function = Versioned("two");
  Restart();
  const Reply again = GetPlan(JobRequest(ForwardGraph(), {}, {1}), milliseconds(30'000));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.response.plan().plan(), plan);
  const Reply other = GetPlan(JobRequest(ChangedGraph(), {}, {1}), milliseconds(30'000));
  EXPECT_EQ(ReasonOf(other.status), "RANKS_DIFFER");
  const Reply old = GetPlan(JobRequest(ForwardGraph(), {.generation = 0}, {1}));
  EXPECT_EQ(ReasonOf(old.status), "GENERATION_OVER");
}

TEST_F(PinTest, AnotherGraphIsPlannedAnewAndPinnedInItsPlace) {
  StartServer();
  const std::string plan = Agree({.generation = 1});
  Calls calls = AllRanks(ChangedGraph(), {.generation = 2});
  v1::PlanSource source{};
  EXPECT_NE(PlanOfAll(calls, &source), plan);
  EXPECT_NE(source, v1::PLAN_SOURCE_PINNED);
  Restart();
  Calls next = AllRanks(ChangedGraph(), {.generation = 3});
  PlanOfAll(next, &source);
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
  EXPECT_EQ(Metric("bucketd_pins"), 1);
}

TEST_F(PinTest, LatestIsTheSameVersionForAllScopesOfAGeneration) {
  StartServer();
  const auto promote_another = [&](double gamma_us) {
    const auto stub = v1::CostProfiles::NewStub(NewChannel());
    CostProfile profile = BuiltInProfiles()[0];
    profile.gamma_us = gamma_us;
    v1::ImportProfileRequest import;
    ProfileToProto(profile, *import.mutable_profile());
    v1::ImportProfileResponse imported;
    grpc::ClientContext one, two;
    const grpc::Status added = stub->ImportProfile(&one, import, &imported);
    EXPECT_TRUE(added.ok()) << added.error_message();
    v1::PromoteProfileRequest promote;
    promote.set_name(profile.name);
    promote.set_version(imported.version().version());
    v1::PromoteProfileResponse promoted;
    const grpc::Status status = stub->PromoteProfile(&two, promote, &promoted);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return absl::StrCat(profile.name, "@", imported.version().version());
  };
  // Of the plan that all ranks of the scope get.
  const auto profile_of = [&](const JobSpec& spec) {
    Calls calls;
    for (uint32_t rank = 0; rank < spec.size; ++rank) {
      v1::GetPlanRequest request = JobRequest(ForwardGraph(), spec, {rank});
      request.mutable_options()->set_cost_profile("latest");
      calls.push_back(std::async(std::launch::async,
                                 [this, request] { return RankCall(ForwardGraph(), request); }));
    }
    v1::Plan plan;
    EXPECT_TRUE(plan.ParseFromString(PlanOfAll(calls)));
    return plan.provenance().cost_profile();
  };
  const std::string first = profile_of({.scope = "0/0/fw"});
  const std::string second = promote_another(3.5);
  EXPECT_NE(first, second);
  EXPECT_EQ(profile_of({.scope = "0/1/fw"}), first);
  Restart();
  EXPECT_EQ(profile_of({.scope = "0/2/fw"}), first) << "a late recompile, after a restart";
  EXPECT_EQ(profile_of({.generation = 2, .scope = "0/0/fw"}), first) << "pinned";
  EXPECT_EQ(profile_of({.generation = 2, .scope = "0/3/fw"}), second);
  EXPECT_EQ(profile_of({.generation = 3, .scope = "0/0/fw", .fresh = true}), second);
}

TEST_F(PinTest, AReleasedJobHasNoPins) {
  options_.plan_function = Versioned("one");
  StartServer();
  Agree({.scope = "0/0/fw"});
  Agree({.scope = "0/0/bw"});
  EXPECT_EQ(Metric("bucketd_pins"), 2);
  grpc::ClientContext context;
  v1::ReleaseJobRequest request;
  v1::ReleaseJobResponse response;
  request.set_job_id("train");
  ASSERT_TRUE(stub_->ReleaseJob(&context, request, &response).ok());
  EXPECT_EQ(response.released(), 2);
  EXPECT_EQ(Metric("bucketd_pins"), 0);
  EXPECT_EQ(Metric("bucketd_agreement_jobs"), 0);
  v1::PlanSource source{};
  Agree({.generation = 0}, &source);  // the name is free again
  EXPECT_NE(source, v1::PLAN_SOURCE_PINNED);
}

TEST_F(PinTest, PinsExpireUnlessTheyAreUsed) {
  options_.pin_ttl = milliseconds(40);
  StartServer();
  Agree({});
  EXPECT_TRUE(Eventually([&] { return Metric("bucketd_pins") == 0; }));
  Restart();
  EXPECT_EQ(Metric("bucketd_pins"), 0);
}

TEST_F(PinTest, BeyondItsQuotaATenantGetsPlansWithoutPins) {
  options_.max_pins_per_tenant = 1;
  StartServer();
  const std::string first = Agree({.scope = "0/0/fw"});
  const std::string second = Agree({.scope = "0/1/fw"});
  EXPECT_EQ(first, second);
  EXPECT_EQ(Metric("bucketd_pins"), 1);
  EXPECT_EQ(Metric("bucketd_agreements_unpinned_total", "reason", "quota"), 1);
  EXPECT_EQ(GetPlan(JobRequest(ForwardGraph(), {.scope = "0/1/fw"}, {1})).response.plan().plan(),
            second)
      << "agreed all the same, as long as the server lives";
  // A pin that is there may be renewed.
  Agree({.generation = 2, .scope = "0/0/fw"});
  EXPECT_EQ(Metric("bucketd_agreements_unpinned_total", "reason", "quota"), 1);
}

TEST_F(PinTest, PinsOutliveTheMemoryOfTheirJob) {
  options_.job_idle = milliseconds(20);
  options_.plan_cache_bytes = 0;
  StartServer();
  const std::string plan = Agree({});
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_agreement_jobs") == 0; }));
  const Reply again = GetPlan(JobRequest(ForwardGraph(), {}, {1}));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.response.plan().plan(), plan);
}

TEST_F(AgreementTest, WithoutAFolderPinsHoldAsLongAsTheServer) {
  StartServer();
  v1::PlanSource source{};
  for (const uint64_t generation : {1U, 2U}) {
    Calls calls = AllRanks(ForwardGraph(), {.generation = generation});
    ASSERT_NE(PlanOfAll(calls, &source), "");
  }
  EXPECT_EQ(source, v1::PLAN_SOURCE_PINNED);
}

}  // namespace
}  // namespace bucketd
