// What GetPlan answers, and that a plan is computed once.
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/match.h"

#include "passes/io/proto_io.h"
#include "passes/plan/verify.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

class GetPlanTest : public ServerTest {};

TEST_F(GetPlanTest, AsksForTheGraphThenComputesThenHits) {
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  const Reply first = GetPlan(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_TRUE(first.asked_to_upload());
  EXPECT_EQ(first.response.graph_required().upload_lease_ms(), options_.upload_lease.count());

  v1::UploadGraphResponse uploaded;
  const grpc::Status upload = Upload(ForwardGraph(), &uploaded);
  ASSERT_TRUE(upload.ok()) << upload.error_message();
  EXPECT_FALSE(uploaded.already_present());
  EXPECT_EQ(uploaded.graph_digest(), request.graph_digest());

  const Reply computed = GetPlan(request);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.source(), v1::PLAN_SOURCE_COMPUTED);
  const Reply hit = GetPlan(request);
  ASSERT_TRUE(hit.status.ok());
  EXPECT_EQ(hit.source(), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(hit.response.plan().plan(), computed.response.plan().plan());
  EXPECT_EQ(hit.response.plan().plan_sha256(), DigestBytes(Sha256(hit.response.plan().plan())));

  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "graph_required"), 1);
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "computed"), 1);
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "hit"), 1);
  EXPECT_EQ(Metric("bucketd_plan_cache_entries"), 1);
}

TEST_F(GetPlanTest, AnswersALegalPlanOfTheGraphThatWasSent) {
  StartServer();
  const Reply reply = GetPlan(InlineRequestFor(ForwardGraph()));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  const absl::StatusOr<Graph> graph = GraphFromBytes(ForwardGraph().bytes);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const absl::StatusOr<Plan> plan = ParsePlan(reply.response.plan().plan());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->graph_digest, ForwardGraph().digest);
  EXPECT_GT(plan->buckets.size(), 0U);
  EXPECT_TRUE(VerifyPlan(*graph, *plan).ok());
}

TEST_F(GetPlanTest, TakesAnInlineGraphWithoutARoundTrip) {
  StartServer();
  const Reply reply = GetPlan(InlineRequestFor(ForwardGraph()));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(Metric("bucketd_upload_reserved_bytes"), 0);
}

TEST_F(GetPlanTest, ComputesOnceForSixtyFourCallersOfOneKey) {
  plan_function_ = gate_.Guard(ComputePlan);
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  std::vector<std::future<Reply>> calls;
  for (int i = 0; i < 64; ++i) {
    calls.push_back(GetPlanAsync(request));
  }
  ASSERT_TRUE(EventuallyWaiting(64));
  gate_.Open();
  int computed = 0;
  std::set<std::string> plans;
  for (std::future<Reply>& call : calls) {
    const Reply reply = call.get();
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    computed += reply.source() == v1::PLAN_SOURCE_COMPUTED ? 1 : 0;
    plans.insert(reply.response.plan().plan());
  }
  EXPECT_EQ(computed, 1);
  EXPECT_EQ(plans.size(), 1U);
  EXPECT_EQ(gate_.entered(), 1);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 1);
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "joined"), 63);
}

TEST_F(GetPlanTest, ComputesOnceForCallersThatRaceWithoutAGate) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  std::vector<std::jthread> threads;
  for (int i = 0; i < 64; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(GetPlan(request).status.ok()); });
  }
  threads.clear();
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 1);
}

TEST_F(GetPlanTest, OtherOptionsAreAnotherPlanOfTheSameGraph) {
  StartServer();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  v1::GetPlanRequest request = RequestFor(ForwardGraph());
  request.mutable_options()->set_numerics(v1::NUMERICS_FREE);
  const Reply other = GetPlan(request);
  ASSERT_TRUE(other.status.ok()) << other.status.error_message();
  EXPECT_EQ(other.source(), v1::PLAN_SOURCE_COMPUTED);
  // The default by its name is the default.
  request.mutable_options()->set_numerics(v1::NUMERICS_EAGER_ORDER);
  request.mutable_options()->set_mode("auto");
  EXPECT_EQ(GetPlan(request).source(), v1::PLAN_SOURCE_HIT);
}

TEST_F(GetPlanTest, KeepsTenantsApart) {
  StartServer();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  v1::GetPlanRequest request = RequestFor(ForwardGraph());
  request.set_tenant("other");
  EXPECT_TRUE(GetPlan(request).asked_to_upload());
}

TEST_F(GetPlanTest, CachedOnlyNeverAsksForAGraph) {
  StartServer();
  v1::GetPlanRequest request = RequestFor(ForwardGraph());
  request.set_cached_only(true);
  EXPECT_EQ(ReasonOf(GetPlan(request).status), "PLAN_NOT_CACHED");
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  EXPECT_EQ(GetPlan(request).source(), v1::PLAN_SOURCE_HIT);
}

TEST_F(GetPlanTest, EvictsThePlanThatWasUsedLongestAgo) {
  options_.plan_cache_bytes = 1;  // one plan, whatever its size
  StartServer();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  ASSERT_TRUE(GetPlan(InlineRequestFor(BackwardGraph())).status.ok());
  EXPECT_EQ(Metric("bucketd_plan_cache_evictions_total"), 1);
  EXPECT_EQ(GetPlan(RequestFor(BackwardGraph())).source(), v1::PLAN_SOURCE_HIT);
  // Its graph is still here.
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_COMPUTED);
}

TEST_F(GetPlanTest, RefusesWhatItDoesNotUnderstand) {
  StartServer();
  v1::GetPlanRequest request = RequestFor(ForwardGraph());
  request.mutable_options()->set_mode("quickly");
  Reply reply = GetPlan(request);
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(reply.status), "OPTIONS_INVALID");
  EXPECT_TRUE(absl::StrContains(reply.status.error_message(), "transformer_block"))
      << "lists the known modes: " << reply.status.error_message();

  request = RequestFor(ForwardGraph());
  request.mutable_options()->set_cost_profile("/etc/passwd");
  reply = GetPlan(request);
  EXPECT_EQ(ReasonOf(reply.status), "PROFILE_UNKNOWN");
  EXPECT_TRUE(absl::StrContains(reply.status.error_message(), "h100_nvlink"));

  request = RequestFor(ForwardGraph());
  request.set_graph_digest("short");
  EXPECT_EQ(ReasonOf(GetPlan(request).status), "DIGEST_MALFORMED");

  request = RequestFor(ForwardGraph());
  request.set_tenant(std::string("a\0b", 3));
  EXPECT_EQ(ReasonOf(GetPlan(request).status), "REQUEST_MALFORMED");

  request = RequestFor(ForwardGraph());
  request.set_client_version("0.0.9");
  EXPECT_EQ(ReasonOf(GetPlan(request).status), "CLIENT_TOO_OLD");
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "error"), 5);
}

TEST_F(GetPlanTest, RefusesAMeshThatIsNotTheGraphs) {
  StartServer();
  v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
  request.mutable_mesh()->mutable_dims(0)->set_size(4);
  request.mutable_mesh()->mutable_dims(0)->set_ranks_per_node(4);
  const Reply sizes = GetPlan(request);
  EXPECT_EQ(ReasonOf(sizes.status), "MESH_INVALID") << sizes.status.error_message();
  request.mutable_mesh()->mutable_dims(0)->set_name("elsewhere");
  const Reply names = GetPlan(request);
  EXPECT_EQ(ReasonOf(names.status), "MESH_INVALID") << names.status.error_message();
  // A failure is not cached: the right mesh is planned.
  EXPECT_TRUE(GetPlan(RequestFor(ForwardGraph())).status.ok());
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "error"), 2);
}

TEST_F(GetPlanTest, AnswersTheLeadersFailureToAllWhoWaitAndForgetsIt) {
  std::atomic<bool> broken{true};
  plan_function_ =
      gate_.Guard([&](const Graph& graph, const PlanRequest& r) -> absl::StatusOr<std::string> {
        if (broken) return absl::InternalError("the planner is broken for this test");
        return ComputePlan(graph, r);
      });
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  std::future<Reply> first = GetPlanAsync(request);
  std::future<Reply> second = GetPlanAsync(request);
  ASSERT_TRUE(EventuallyWaiting(2));
  gate_.Open();
  EXPECT_EQ(first.get().status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(second.get().status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(gate_.entered(), 1);
  broken = false;
  EXPECT_EQ(GetPlan(request).source(), v1::PLAN_SOURCE_COMPUTED);
}

TEST_F(GetPlanTest, CapabilitiesStateTheLimitsThatHold) {
  options_.intake.max_graph_nodes = 1234;
  StartServer();
  grpc::ClientContext context;
  v1::GetCapabilitiesResponse response;
  ASSERT_TRUE(stub_->GetCapabilities(&context, {}, &response).ok());
  EXPECT_EQ(response.max_graph_nodes(), 1234);
  EXPECT_EQ(response.max_chunk_bytes(), options_.intake.max_chunk_bytes);
  EXPECT_GT(response.modes_size(), 0);
  EXPECT_GT(response.cost_profiles_size(), 0);
  EXPECT_EQ(response.codecs_size(), 2);
  EXPECT_FALSE(response.server_version().empty());
}

}  // namespace
}  // namespace bucketd
