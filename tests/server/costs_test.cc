// The CostProfiles service and what plans make of profiles, through real gRPC; and when a new
// generation gets a new plan.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "passes/cost/device_model.h"
#include "passes/io/proto_io.h"
#include "passes/planner.h"
#include "passes/sim/simulator.h"
#include "proto/cost_service.grpc.pb.h"
#include "server/jobs/replan.h"
#include "server/plans/plan_request.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

v1::CostProfile Profile(const std::string& name, double gamma_us) {
  CostProfile profile;
  profile.name = name;
  profile.gamma_us = gamma_us;
  v1::CostProfile message;
  ProfileToProto(profile, message);
  return message;
}

v1::ReportCostsRequest Header(const std::string& profile, const std::string& reporter) {
  v1::ReportCostsRequest message;
  message.mutable_header()->set_profile(profile);
  message.mutable_header()->set_reporter(reporter);
  message.mutable_header()->set_tool("probe 1");
  return message;
}

// Gathers over 8 ranks that take `factor` times what the built-in profile says.
v1::ReportCostsRequest Batch(double factor, int rounds = 4) {
  v1::ReportCostsRequest message;
  CollectiveSample sample;
  sample.of = {CollectiveKind::kAllGather, "", 8, 8, DType::kBF16};
  const StatedCosts::Link link = LinkUnder(CostProfile(), sample.of);
  for (sample.bytes = 4096; sample.bytes <= int64_t{64} << 20; sample.bytes *= 4) {
    const double us = link.alpha_us + WireFactor(sample.of.kind, 8) *
                                          static_cast<double>(sample.bytes) /
                                          link.busbw_bytes_per_s * 1e6;
    sample.picoseconds = static_cast<int64_t>(us * factor * 1e6);
    for (int i = 0; i < rounds; ++i) {
      SampleToProto(sample, *message.mutable_batch()->add_samples());
    }
  }
  return message;
}

class CostsTest : public ServerTest {
 protected:
  using Stub = v1::CostProfiles::Stub;

  void Start() {
    StartServer();
    costs_ = v1::CostProfiles::NewStub(NewChannel());
  }

  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (Stub::*rpc)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    return (*costs_.*rpc)(&context, request, &response);
  }

  // The version's number; 0 for an error, whose reason is then in reason_.
  uint32_t Import(const v1::CostProfile& profile) {
    v1::ImportProfileRequest request;
    *request.mutable_profile() = profile;
    request.set_by("test");
    v1::ImportProfileResponse response;
    return Take(Call(&Stub::ImportProfile, request, response)) ? response.version().version() : 0;
  }
  uint32_t Promote(const std::string& name, uint32_t version) {
    v1::PromoteProfileRequest request;
    request.set_name(name);
    request.set_version(version);
    v1::PromoteProfileResponse response;
    return Take(Call(&Stub::PromoteProfile, request, response)) ? response.version().version() : 0;
  }
  uint32_t Rollback(const std::string& name) {
    v1::RollbackProfileRequest request;
    request.set_name(name);
    v1::RollbackProfileResponse response;
    return Take(Call(&Stub::RollbackProfile, request, response)) ? response.version().version() : 0;
  }
  uint32_t Propose(const std::string& name, v1::ProposeProfileResponse* response = nullptr) {
    v1::ProposeProfileRequest request;
    request.set_name(name);
    v1::ProposeProfileResponse ignored;
    v1::ProposeProfileResponse& answer = response == nullptr ? ignored : *response;
    return Take(Call(&Stub::ProposeProfile, request, answer)) ? answer.version().version() : 0;
  }
  v1::GetProfileResponse Get(const std::string& spec) {
    v1::GetProfileRequest request;
    request.set_profile(spec);
    v1::GetProfileResponse response;
    Take(Call(&Stub::GetProfile, request, response));
    return response;
  }
  v1::ListProfilesResponse List(const std::string& name) {
    v1::ListProfilesRequest request;
    request.set_name(name);
    v1::ListProfilesResponse response;
    EXPECT_TRUE(Take(Call(&Stub::ListProfiles, request, response)));
    return response;
  }
  v1::ReportCostsResponse Send(const std::vector<v1::ReportCostsRequest>& messages) {
    grpc::ClientContext context;
    v1::ReportCostsResponse response;
    auto writer = costs_->ReportCosts(&context, &response);
    for (const v1::ReportCostsRequest& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    Take(writer->Finish());
    return response;
  }

  bool Take(const grpc::Status& status) {
    status_ = status;
    reason_ = status.ok() ? "" : ReasonOf(status);
    return status.ok();
  }

  Reply PlanWith(const std::string& profile) {
    v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
    request.mutable_options()->set_cost_profile(profile);
    return GetPlan(request);
  }
  // "name@version" that the plan says it was made with; the reason of an error.
  std::string ProfileOf(const Reply& reply) {
    if (!reply.status.ok()) return ReasonOf(reply.status);
    const absl::StatusOr<Plan> plan = ParsePlan(reply.response.plan().plan());
    return plan.ok() ? plan->cost_profile : plan.status().ToString();
  }

  std::unique_ptr<Stub> costs_;
  grpc::Status status_;
  std::string reason_;
};

TEST_F(CostsTest, PlansAreMadeWithTheVersionThatWasAskedFor) {
  Start();
  ASSERT_EQ(Import(Profile("site", 3.0)), 1U);
  ASSERT_EQ(Import(Profile("site", 4.0)), 2U);
  EXPECT_EQ(ProfileOf(PlanWith("site")), "site@1");
  EXPECT_EQ(ProfileOf(PlanWith("site@2")), "site@2");
  EXPECT_EQ(ProfileOf(PlanWith("site@latest")), "site@1");
  EXPECT_EQ(PlanWith("site@latest").source(), v1::PLAN_SOURCE_HIT) << "the plan of site@1";
  EXPECT_EQ(Promote("site", 2), 2U);
  EXPECT_EQ(ProfileOf(PlanWith("site@latest")), "site@2");
  EXPECT_EQ(ProfileOf(PlanWith("site")), "site@1");
  EXPECT_EQ(Rollback("site"), 1U);
  EXPECT_EQ(ProfileOf(PlanWith("site@latest")), "site@1");
  EXPECT_EQ(ProfileOf(PlanWith("site@3")), "PROFILE_UNKNOWN");
  EXPECT_EQ(ProfileOf(PlanWith("elsewhere")), "PROFILE_UNKNOWN");
  EXPECT_EQ(Rollback("site"), 0U);
  EXPECT_EQ(reason_, "NO_EARLIER_VERSION");
  EXPECT_EQ(Metric("bucketd_cost_promotions_total", "kind", "promote"), 1);
  EXPECT_EQ(Metric("bucketd_cost_promotions_total", "kind", "rollback"), 1);
  EXPECT_EQ(Metric("bucketd_cost_profiles"), 5 + 2);
}

TEST_F(CostsTest, LatestIsWhatIsPromotedNowThoughTheSameBytesCameBefore) {
  Start();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  for (const char* spec : {"latest", "h100_nvlink@latest"}) {
    v1::GetPlanRequest request = RequestFor(ForwardGraph());
    request.mutable_options()->set_cost_profile(spec);
    EXPECT_EQ(ProfileOf(GetPlan(request)), "h100_nvlink@1");
    EXPECT_EQ(GetPlan(request).source(), v1::PLAN_SOURCE_HIT);
    const uint32_t version = Import(Profile("h100_nvlink", spec[0] == 'l' ? 3.5 : 4.5));
    ASSERT_EQ(Promote("h100_nvlink", version), version);
    EXPECT_EQ(ProfileOf(GetPlan(request)), absl::StrCat("h100_nvlink@", version));
    EXPECT_EQ(Rollback("h100_nvlink"), 1U);
    EXPECT_EQ(ProfileOf(GetPlan(request)), "h100_nvlink@1");
  }
}

TEST_F(CostsTest, AfterARestartNamesMeanWhatTheyMeantBefore) {
  options_.store_dir = folder_ + "/store";
  Start();
  ASSERT_EQ(Import(Profile("site", 3.0)), 1U);
  ASSERT_EQ(Import(Profile("site", 4.0)), 2U);
  ASSERT_EQ(Promote("site", 2), 2U);
  ASSERT_EQ(Send({Header("site", "a"), Batch(1.1)}).accepted(), 32U);
  server_->Shutdown();
  Start();
  EXPECT_EQ(ProfileOf(PlanWith("site@latest")), "site@2");
  EXPECT_EQ(ProfileOf(PlanWith("site")), "site@1");
  ASSERT_EQ(List("site").samples_size(), 1);
  EXPECT_EQ(List("site").samples(0).samples(), 32U);
  EXPECT_EQ(Rollback("site"), 1U);
}

TEST_F(CostsTest, EqualNumbersUnderAnotherNameAreAnotherPlanThatSaysSo) {
  Start();
  ASSERT_EQ(Import(Profile("one", 3.0)), 1U);
  ASSERT_EQ(Import(Profile("two", 3.0)), 1U);
  EXPECT_EQ(PlanWith("one").source(), v1::PLAN_SOURCE_COMPUTED);
  const Reply two = PlanWith("two");
  EXPECT_EQ(two.source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(ProfileOf(two), "two@1");
  EXPECT_EQ(ProfileOf(PlanWith("one")), "one@1");
}

TEST_F(CostsTest, ProfilesAreShownAsTheyCame) {
  Start();
  v1::CostProfile profile = Profile("site", 3.25);
  profile.set_version(77);
  v1::MeasuredLink& link = *profile.add_links();
  link.set_kind(v1::COLLECTIVE_KIND_ALL_GATHER);
  link.set_dtype(v1::DTYPE_BF16);
  link.set_group_size(8);
  link.set_alpha_us(12.5);
  link.set_busbw_bytes_per_s(2e11);
  ASSERT_EQ(Import(profile), 1U) << "the server numbers versions";
  const v1::GetProfileResponse got = Get("site@latest");
  EXPECT_EQ(got.profile().gamma_us(), 3.25);
  ASSERT_EQ(got.profile().links_size(), 1);
  EXPECT_EQ(got.profile().links(0).alpha_us(), 12.5);
  EXPECT_TRUE(got.version().promoted());
  EXPECT_EQ(got.version().by(), "test");
  EXPECT_EQ(List("site").profiles_size(), 1);
  EXPECT_EQ(List("").profiles_size(), 6);
  EXPECT_EQ(List("").profiles(0).origin(), v1::PROFILE_ORIGIN_BUILT_IN);
  grpc::ClientContext context;
  v1::GetCapabilitiesResponse capabilities;
  ASSERT_TRUE(stub_->GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_THAT(capabilities.cost_profiles(), Contains("site"));
  EXPECT_THAT(capabilities.cost_profiles(), Contains("h100_nvlink"));
}

TEST_F(CostsTest, WhatMakesNoSenseIsRefusedWithItsReason) {
  Start();
  EXPECT_EQ(Import(Profile("no spaces", 3.0)), 0U);
  EXPECT_EQ(reason_, "PROFILE_INVALID");
  EXPECT_EQ(Import(Profile("site", -3.0)), 0U);
  EXPECT_EQ(reason_, "PROFILE_INVALID");
  EXPECT_THAT(status_.error_message(), HasSubstr("gamma_us"));
  v1::CostProfile later = Profile("site", 3.0);
  later.set_format_version(2);
  EXPECT_EQ(Import(later), 0U);
  EXPECT_EQ(reason_, "PROFILE_INVALID");
  EXPECT_EQ(Promote("h100_nvlink", 4'000'000'000U), 0U);
  EXPECT_EQ(reason_, "PROFILE_UNKNOWN");
  EXPECT_EQ(Propose("h100_nvlink"), 0U);
  EXPECT_EQ(reason_, "NO_SAMPLES");
  EXPECT_EQ(Propose("h100_nvlink@1"), 0U);
  EXPECT_EQ(reason_, "PROFILE_INVALID");
  Get("site");
  EXPECT_EQ(reason_, "PROFILE_UNKNOWN");
}

TEST_F(CostsTest, ReportsBecomeACandidateThatChangesPlansOncePromoted) {
  Start();
  for (const char* host : {"a", "b", "c"}) {
    const v1::ReportCostsResponse taken = Send({Header("h100_nvlink", host), Batch(2.0)});
    ASSERT_TRUE(status_.ok()) << status_.error_message();
    EXPECT_EQ(taken.accepted(), 32U);
    EXPECT_EQ(taken.refused(), 0U);
  }
  const v1::ListProfilesResponse list = List("h100_nvlink");
  ASSERT_EQ(list.samples_size(), 1);
  EXPECT_EQ(list.samples(0).samples(), 96U);
  EXPECT_EQ(list.samples(0).reporters(), 3U);
  v1::ProposeProfileResponse proposal;
  ASSERT_EQ(Propose("h100_nvlink", &proposal), 2U) << status_.error_message();
  ASSERT_EQ(proposal.classes_size(), 1);
  EXPECT_TRUE(proposal.classes(0).quorum());
  EXPECT_NEAR(proposal.classes(0).alpha_us_after() / proposal.classes(0).alpha_us_before(), 2.0,
              0.01);
  const Reply before = PlanWith("latest");
  EXPECT_EQ(ProfileOf(before), "h100_nvlink@1");
  ASSERT_EQ(Promote("h100_nvlink", 2), 2U);
  const Reply after = PlanWith("latest");
  EXPECT_EQ(ProfileOf(after), "h100_nvlink@2");
  const Plan plan_before = *ParsePlan(before.response.plan().plan());
  const Plan plan_after = *ParsePlan(after.response.plan().plan());
  // Not by twice: dearer wires make larger buckets.
  EXPECT_GT(plan_after.prediction.comm_ps, plan_before.prediction.comm_ps * 5 / 4);
  EXPECT_EQ(Metric("bucketd_cost_samples_total", "result", "accepted"), 96);
  EXPECT_EQ(Metric("bucketd_cost_proposals_total", "result", "new_version"), 1);
}

TEST_F(CostsTest, ReportsThatBreakTheRulesAreRefusedWhole) {
  options_.costs.max_report_samples = 64;
  Start();
  Send({Batch(1.0)});
  EXPECT_EQ(reason_, "UPLOAD_PROTOCOL");
  Send({});
  EXPECT_EQ(reason_, "UPLOAD_PROTOCOL");
  Send({Header("h100_nvlink", "a"), Header("h100_nvlink", "a")});
  EXPECT_EQ(reason_, "UPLOAD_PROTOCOL");
  Send({Header("h1000", "a"), Batch(1.0)});
  EXPECT_EQ(reason_, "PROFILE_UNKNOWN");
  Send({Header("h100_nvlink", ""), Batch(1.0)});
  EXPECT_EQ(reason_, "PROFILE_INVALID");
  Send({Header("h100_nvlink", std::string(129, 'x')), Batch(1.0)});
  EXPECT_EQ(reason_, "PROFILE_INVALID");
  Send({Header("h100_nvlink", "a"), Batch(1.0), Batch(1.0), Batch(1.0, 1)});
  EXPECT_EQ(reason_, "PROFILE_LIMIT");
  EXPECT_EQ(MetadataOf(status_, "limit"), "64");
  EXPECT_EQ(MetadataOf(status_, "actual"), "72");
  EXPECT_EQ(List("").samples_size(), 0) << "nothing of all that was taken";
  EXPECT_EQ(Send({Header("h100_nvlink", "a"), Batch(1.0), Batch(1.0)}).accepted(), 64U);
  options_.costs.max_report_samples = 20'000;
}

TEST_F(CostsTest, SamplesThatMakeNoSenseDoNotTakeTheOthersAlong) {
  Start();
  v1::ReportCostsRequest batch = Batch(1.0, 1);
  batch.mutable_batch()->mutable_samples(3)->set_picoseconds(0);
  batch.mutable_batch()->mutable_samples(5)->set_group_size(1);
  const v1::ReportCostsResponse taken = Send({Header("h100_nvlink", "a"), Batch(1.0, 1), batch});
  ASSERT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_EQ(taken.accepted(), 14U);
  EXPECT_EQ(taken.refused(), 2U);
  EXPECT_THAT(taken.first_refusal(), HasSubstr("sample 11: picoseconds is 0"));
  EXPECT_EQ(Metric("bucketd_cost_samples_total", "result", "refused"), 2);
}

TEST_F(CostsTest, AMessageHoldsABoundedNumberOfSamples) {
  Start();
  v1::ReportCostsRequest batch;
  for (int i = 0; i < 4097; ++i) batch.mutable_batch()->add_samples();
  Send({Header("h100_nvlink", "a"), batch});
  EXPECT_EQ(reason_, "PROFILE_LIMIT");
  batch.mutable_batch()->mutable_samples()->RemoveLast();
  EXPECT_EQ(Send({Header("h100_nvlink", "a"), batch}).refused(), 4096U);
}

TEST_F(CostsTest, StreamsAreBoundedAndWhatBreaksOffLeavesNothing) {
  options_.costs.max_report_streams = 1;
  options_.upload_stall = std::chrono::minutes(10);
  Start();
  {
    grpc::ClientContext context;
    v1::ReportCostsResponse response;
    auto writer = costs_->ReportCosts(&context, &response);
    ASSERT_TRUE(writer->Write(Header("h100_nvlink", "a")));
    ASSERT_TRUE(writer->Write(Batch(1.0)));
    ASSERT_TRUE(Eventually(
        [&] { return Metric("bucketd_requests_in_flight", "method", "ReportCosts") == 1; }));
    Send({Header("h100_nvlink", "b"), Batch(1.0)});
    EXPECT_EQ(reason_, "OVERLOADED");
    EXPECT_EQ(MetadataOf(status_, "limit"), "1");
    EXPECT_GT(RetryDelayMillis(status_), 0);
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ASSERT_TRUE(Eventually([&] {
    return Send({Header("h100_nvlink", "b"), Batch(1.0)}).accepted() == 32;
  })) << "the other one has gone";
  EXPECT_EQ(List("").samples(0).samples(), 32U);
}

TEST_F(CostsTest, AReportThatStallsIsEnded) {
  options_.upload_stall = milliseconds(20);
  Start();
  grpc::ClientContext context;
  v1::ReportCostsResponse response;
  auto writer = costs_->ReportCosts(&context, &response);
  ASSERT_TRUE(writer->Write(Header("h100_nvlink", "a")));
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(CostsTest, AReportEndsHoweverOftenItSendsNothingAndWhateverItSends) {
  v1::ReportCostsRequest empty;
  empty.mutable_batch();
  const auto end = [&](const v1::ReportCostsRequest& message) {
    Start();
    grpc::ClientContext context;
    v1::ReportCostsResponse response;
    auto writer = costs_->ReportCosts(&context, &response);
    EXPECT_TRUE(writer->Write(Header("h100_nvlink", "a")));
    EXPECT_TRUE(Eventually([&] { return !writer->Write(message); }));
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
    server_.reset();
  };
  options_.upload_stall = milliseconds(100);
  end(empty);
  options_.upload_stall = std::chrono::minutes(10);
  options_.upload_deadline = std::chrono::seconds(1);
  end(Batch(1.0, 1));
}

TEST_F(CostsTest, ChangesAreForThoseWhoMayUseTheAdminService) {
  options_.admin = "off";
  Start();
  EXPECT_EQ(Import(Profile("site", 3.0)), 0U);
  EXPECT_EQ(reason_, "ADMIN_NOT_ALLOWED");
  EXPECT_EQ(Propose("h100_nvlink"), 0U);
  EXPECT_EQ(reason_, "ADMIN_NOT_ALLOWED");
  EXPECT_EQ(Promote("h100_nvlink", 1), 0U);
  EXPECT_EQ(reason_, "ADMIN_NOT_ALLOWED");
  EXPECT_EQ(Rollback("h100_nvlink"), 0U);
  EXPECT_EQ(reason_, "ADMIN_NOT_ALLOWED");
  EXPECT_EQ(Send({Header("h100_nvlink", "a"), Batch(1.0)}).accepted(), 32U)
      << "evidence is welcome";
  EXPECT_EQ(Get("h100_nvlink").version().version(), 1U);
}

TEST_F(CostsTest, ADrainingServerTakesNoChanges) {
  Start();
  server_->BeginDrain();
  EXPECT_EQ(Import(Profile("site", 3.0)), 0U);
  EXPECT_EQ(reason_, "DRAINING");
  Send({Header("h100_nvlink", "a"), Batch(1.0)});
  EXPECT_EQ(reason_, "DRAINING");
  EXPECT_EQ(Get("h100_nvlink").version().version(), 1U) << "reading goes on";
}

// When a generation gets a new plan.

class ReplanTest : public ::testing::Test {
 protected:
  static Plan PlanOf(const Graph& graph, const Costs& costs, const std::string& mode) {
    PlanOptions options;
    options.mode = mode;
    absl::StatusOr<Plan> plan = MakePlan(graph, costs, options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  const Graph graph_ = *GraphFromBytes(ForwardGraph().bytes);
  const Mesh mesh_ = *MeshFromProto(ForwardGraph().mesh);
  const Costs costs_ = *Costs::FromDeviceModel(graph_, mesh_, CostProfile());
};

TEST_F(ReplanTest, TheOldPlanStaysUnlessTheNewOneIsBetterByMoreThanTheThreshold) {
  const Plan none = PlanOf(graph_, costs_, "none");
  const Plan good = PlanOf(graph_, costs_, "overlap");
  const int64_t slow = Simulate(graph_, none, costs_).prediction.total_ps;
  const int64_t fast = Simulate(graph_, good, costs_).prediction.total_ps;
  ASSERT_LT(fast, slow);
  const auto verdict = JudgeReplan(graph_, none, good, costs_, 0);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_TRUE(verdict->replace);
  EXPECT_EQ(verdict->pinned_ps, slow);
  EXPECT_EQ(verdict->fresh_ps, fast);
  EXPECT_EQ(verdict->gain_ppm, (slow - fast) * 1'000'000 / slow);
  EXPECT_TRUE(JudgeReplan(graph_, none, good, costs_, verdict->gain_ppm)->replace)
      << "the share is cut, the comparison is exact";
  EXPECT_FALSE(JudgeReplan(graph_, none, good, costs_, verdict->gain_ppm + 1)->replace);
  EXPECT_FALSE(JudgeReplan(graph_, good, good, costs_, 0)->replace) << "a tie keeps";
  const auto worse = JudgeReplan(graph_, good, none, costs_, 0);
  EXPECT_FALSE(worse->replace);
  EXPECT_LT(worse->gain_ppm, 0);
}

TEST_F(ReplanTest, IsJudgedUnderTheCostsOfNow) {
  const Plan good = PlanOf(graph_, costs_, "overlap");
  CostProfile slow_links;
  slow_links.busbw_scale = 0.05;
  slow_links.alpha_scale = 20.0;
  const Costs now = *Costs::FromDeviceModel(graph_, mesh_, slow_links);
  const Plan fresh = PlanOf(graph_, now, "overlap");
  const auto verdict = JudgeReplan(graph_, good, fresh, now, 0);
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->pinned_ps, Simulate(graph_, good, now).prediction.total_ps);
  EXPECT_GT(verdict->pinned_ps, Simulate(graph_, good, costs_).prediction.total_ps);
}

TEST_F(ReplanTest, ReadsWhatIsPinnedAndRefusesWhatIsNoPlanOfThisGraph) {
  PlanRequest request;
  request.mesh = mesh_;
  request.profile = std::make_shared<const KeyedProfile>(CostProfile());
  Plan none = PlanOf(graph_, costs_, "none");
  const Plan good = PlanOf(graph_, costs_, "overlap");
  const std::string pinned = SerializePlan(graph_, none);
  const std::string fresh = SerializePlan(graph_, good);
  const auto verdict = JudgeReplan(graph_, pinned, fresh, request, 0);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_TRUE(verdict->replace);
  EXPECT_FALSE(JudgeReplan(graph_, "garbage", fresh, request, 0).ok());
  none.order.pop_back();
  EXPECT_EQ(JudgeReplan(graph_, none, good, costs_, 0).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace bucketd
