// What is asked again in the same bytes is answered from memory, and never with what has become
// wrong.
#include <string>

#include "server/plans/request_memo.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

TEST(RequestMemoTest, ComparesTheWholeRequest) {
  RequestMemo memo(1 << 20);
  EXPECT_EQ(memo.Get("", "request"), nullptr);
  memo.Put("", "request", {Sha256("a"), "key"});
  ASSERT_NE(memo.Get("", "request"), nullptr);
  EXPECT_EQ(memo.Get("", "request")->key, "key");
  EXPECT_EQ(memo.Get("", "request")->digest, Sha256("a"));
  EXPECT_EQ(memo.Get("", "request "), nullptr);
  EXPECT_EQ(memo.Get("", "reques"), nullptr);
  EXPECT_EQ(memo.Get("", absl::string_view("request\0", 8)), nullptr);
}

TEST(RequestMemoTest, KeepsApartWhoSentIt) {
  RequestMemo memo(1 << 20);
  memo.Put("a", "request", {Sha256("a"), "of a"});
  memo.Put("b", "request", {Sha256("b"), "of b"});
  EXPECT_EQ(memo.Get("a", "request")->key, "of a");
  EXPECT_EQ(memo.Get("b", "request")->key, "of b");
  EXPECT_EQ(memo.Get("c", "request"), nullptr);
  EXPECT_EQ(memo.Get("", "request"), nullptr);
}

TEST(RequestMemoTest, IsBounded) {
  RequestMemo memo(20'000);
  const std::string large(4'000, 'x');
  for (int i = 0; i < 100; ++i) memo.Put("", large + std::to_string(i), {{}, "key"});
  EXPECT_EQ(memo.Get("", large + "0"), nullptr);
  EXPECT_NE(memo.Get("", large + "99"), nullptr);
  const std::string huge(RequestMemo::kMaxRequestBytes + 1, 'x');
  memo.Put("", huge, {{}, "key"});
  EXPECT_EQ(memo.Get("", huge), nullptr);
  EXPECT_NE(memo.Get("", large + "99"), nullptr);
}

class HitTest : public ServerTest {
 protected:
  v1::PlanSource Ask(const v1::GetPlanRequest& request) {
    const Reply reply = GetPlan(request);
    EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
    return reply.source();
  }
  // From the start of the server.
  double Computed() { return Metric("bucketd_plan_computations_total", "result", "ok"); }
};

TEST_F(HitTest, TheSameBytesAreTheSamePlanAgainAndAgain) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  const Reply first = GetPlan(request);
  EXPECT_EQ(first.source(), v1::PLAN_SOURCE_COMPUTED);
  for (int i = 0; i < 3; ++i) {
    const Reply again = GetPlan(request);
    EXPECT_EQ(again.source(), v1::PLAN_SOURCE_HIT);
    EXPECT_EQ(again.response.plan().plan(), first.response.plan().plan());
  }
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "hit"), 3);
}

TEST_F(HitTest, AnEvictedPlanIsComputedAgain) {
  options_.plan_cache_bytes = 0;  // one plan at a time
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest one = RequestFor(ForwardGraph());
  v1::GetPlanRequest two = one;
  two.mutable_options()->set_prefetch_forward(2);
  EXPECT_EQ(Ask(one), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(Ask(one), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(Ask(two), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(Ask(one), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(Ask(one), v1::PLAN_SOURCE_HIT);
}

TEST_F(HitTest, AHitKeepsItsPlanInTheCache) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest one = RequestFor(ForwardGraph());
  Ask(one);
  options_.plan_cache_bytes = static_cast<int64_t>(2.5 * Metric("bucketd_plan_cache_bytes"));
  Restart();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  v1::GetPlanRequest two = one;
  two.mutable_options()->set_prefetch_forward(2);
  v1::GetPlanRequest three = one;
  three.mutable_options()->set_prefetch_forward(3);
  Ask(one);
  Ask(two);
  Ask(one);    // a use: now the other one is the oldest
  Ask(three);  // drops it
  EXPECT_EQ(Ask(one), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(Computed(), 3);
  EXPECT_EQ(Ask(two), v1::PLAN_SOURCE_COMPUTED);
}

TEST_F(HitTest, OtherBytesAreReadAfreshAndRefusedAfresh) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest good = RequestFor(ForwardGraph());
  Ask(good);
  Ask(good);
  v1::GetPlanRequest tenant = good;
  tenant.set_tenant("another");
  EXPECT_TRUE(GetPlan(tenant).asked_to_upload());
  v1::GetPlanRequest bad = good;
  bad.mutable_options()->set_mode("no such mode");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ReasonOf(GetPlan(bad).status), "OPTIONS_INVALID");
  v1::GetPlanRequest old = good;
  old.set_client_version("0.0.1");
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(GetPlan(old).status.ok());
}

TEST_F(HitTest, ADrainingServerRefusesWhatItKnowsToo) {
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  Ask(request);
  EXPECT_EQ(Ask(request), v1::PLAN_SOURCE_HIT);
  server_->BeginDrain();
  EXPECT_EQ(ReasonOf(GetPlan(request).status), "DRAINING");
}

TEST_F(HitTest, AGraphThatRidesAlongEveryTimeIsNoReasonToForgetThePlan) {
  StartServer();
  const v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
  EXPECT_EQ(Ask(request), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(Ask(request), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(Ask(request), v1::PLAN_SOURCE_HIT);
}

}  // namespace
}  // namespace bucketd
