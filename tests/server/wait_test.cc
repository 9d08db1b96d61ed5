// Callers that wait: for a graph that another one was asked for, for a computation, for a slot; and
// how that ends.
#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "absl/strings/match.h"

#include "passes/base/cancellation.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

using WaitTest = ServerTest;

TEST_F(WaitTest, HoldsOthersUntilTheGraphArrivesThenComputesForThem) {
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  ASSERT_TRUE(GetPlan(request).asked_to_upload());
  std::vector<std::future<Reply>> held;
  for (int i = 0; i < 3; ++i) held.push_back(GetPlanAsync(request));
  ASSERT_TRUE(EventuallyWaiting(3));
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  for (std::future<Reply>& call : held) {
    const Reply reply = call.get();
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_TRUE(reply.response.has_plan());
  }
  EXPECT_EQ(GetPlan(request).source(), v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "ok"), 1);
  EXPECT_EQ(Metric("bucketd_upload_leases_granted_total"), 1);
}

TEST_F(WaitTest, OneUploadServesAllKeysThatWaitForItsGraph) {
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  ASSERT_TRUE(GetPlan(request).asked_to_upload());
  v1::GetPlanRequest other = request;
  other.mutable_options()->set_numerics(v1::NUMERICS_FREE);
  std::future<Reply> one = GetPlanAsync(request);
  std::future<Reply> two = GetPlanAsync(other);
  ASSERT_TRUE(EventuallyWaiting(2));
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  EXPECT_EQ(one.get().source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(two.get().source(), v1::PLAN_SOURCE_COMPUTED);
}

TEST_F(WaitTest, AsksTheNextCallerWhenALeaseExpires) {
  options_.upload_lease = milliseconds(50);
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  ASSERT_TRUE(GetPlan(request).asked_to_upload());  // and never uploads
  const Reply next = GetPlan(request);
  EXPECT_TRUE(next.asked_to_upload()) << next.status.error_message();
  EXPECT_EQ(Metric("bucketd_upload_leases_expired_total"), 1);
}

TEST_F(WaitTest, AsksTheNextCallerAtOnceWhenAClientDiesInTheMiddleOfItsUpload) {
  options_.upload_lease = std::chrono::minutes(10);
  options_.upload_resume = milliseconds(0);
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  ASSERT_TRUE(GetPlan(request).asked_to_upload());
  OpenUpload upload(*stub_, HeaderFor(ForwardGraph()));
  ASSERT_TRUE(upload.Send(Zstd(ForwardGraph().bytes).substr(0, 100)));
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_upload_received_bytes_total") == 100; }));
  std::future<Reply> held = GetPlanAsync(request);
  ASSERT_TRUE(EventuallyWaiting(1));
  EXPECT_FALSE(upload.Cancel().ok());
  EXPECT_TRUE(held.get().asked_to_upload());
  EXPECT_TRUE(
      Eventually([&] { return Metric("bucketd_uploads_total", "outcome", "abandoned") == 1; }));
  EXPECT_TRUE(Eventually([&] { return Metric("bucketd_upload_reserved_bytes") == 0; }));
}

TEST_F(WaitTest, EndsAnUploadThatStallsAndAsksTheNextCaller) {
  options_.upload_stall = milliseconds(50);
  options_.upload_lease = std::chrono::minutes(10);
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  OpenUpload upload(*stub_, HeaderFor(ForwardGraph()));
  ASSERT_TRUE(
      Eventually([&] { return Metric("bucketd_uploads_total", "outcome", "abandoned") == 1; }));
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(GetPlan(request).asked_to_upload());
}

TEST_F(WaitTest, ABadInlineGraphHarmsNobodyButItsSender) {
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  ASSERT_TRUE(GetPlan(request).asked_to_upload());
  std::future<Reply> held = GetPlanAsync(request);
  ASSERT_TRUE(EventuallyWaiting(1));
  v1::GetPlanRequest bad = InlineRequestFor(BackwardGraph());
  bad.set_graph_digest(request.graph_digest());
  const Reply refused = GetPlan(bad);
  EXPECT_EQ(ReasonOf(refused.status), "DIGEST_MISMATCH");
  EXPECT_TRUE(held.get().asked_to_upload());
}

TEST_F(WaitTest, TellsAFollowerWhatItsDeadlineWasSpentOn) {
  plan_function_ = gate_.Guard(ComputePlan);
  options_.compute_slots = 1;
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  ASSERT_TRUE(GetPlan(request).asked_to_upload());

  Reply late = GetPlanInVain(request);
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(late.status), "DEADLINE");
  EXPECT_TRUE(absl::StrContains(late.status.error_message(), "another caller"))
      << late.status.error_message();

  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  std::future<Reply> leader = GetPlanAsync(request);
  gate_.WaitUntilEntered(1);
  late = GetPlanInVain(request);
  EXPECT_EQ(ReasonOf(late.status), "DEADLINE");
  EXPECT_TRUE(absl::StrContains(late.status.error_message(), "being computed"))
      << late.status.error_message();

  v1::GetPlanRequest other = request;
  other.mutable_options()->set_numerics(v1::NUMERICS_FREE);
  late = GetPlanInVain(other);
  EXPECT_TRUE(absl::StrContains(late.status.error_message(), "compute slot"))
      << late.status.error_message();

  gate_.Open();
  EXPECT_EQ(leader.get().source(), v1::PLAN_SOURCE_COMPUTED);
}

TEST_F(WaitTest, ALeaderThatLeavesTakesNobodyWithIt) {
  plan_function_ = gate_.Guard(ComputePlan);
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  grpc::ClientContext context;
  std::future<grpc::Status> leader = std::async(std::launch::async, [&] {
    v1::GetPlanResponse response;
    return stub_->GetPlan(&context, request, &response);
  });
  gate_.WaitUntilEntered(1);
  std::future<Reply> follower = GetPlanAsync(request);
  ASSERT_TRUE(EventuallyWaiting(2));
  context.TryCancel();
  EXPECT_EQ(leader.get().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(EventuallyWaiting(1));
  gate_.Open();
  EXPECT_EQ(follower.get().source(), v1::PLAN_SOURCE_JOINED);
  EXPECT_EQ(gate_.entered(), 1);
}

TEST_F(WaitTest, FinishesAndCachesAPlanThatNobodyWaitsForAnyMore) {
  plan_function_ = gate_.Guard(ComputePlan);
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  EXPECT_EQ(ReasonOf(GetPlanInVain(request).status), "DEADLINE");
  gate_.Open();
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_plan_cache_entries") == 1; }));
  EXPECT_EQ(GetPlan(request).source(), v1::PLAN_SOURCE_HIT);
}

TEST_F(WaitTest, DropsWhatNobodyWaitsForAndCancelsItWhereOthersNeedTheSlot) {
  std::atomic<int> begun{0};
  plan_function_ = [&](const Graph& graph, const PlanRequest& request) {
    if (++begun > 1) return ComputePlan(graph, request);
    while (!IsCancelled()) std::this_thread::yield();
    return absl::StatusOr<std::string>(absl::CancelledError(""));
  };
  options_.compute_slots = 1;
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  v1::GetPlanRequest request = RequestFor(ForwardGraph());
  EXPECT_EQ(ReasonOf(GetPlanInVain(request).status), "DEADLINE");
  EXPECT_EQ(Metric("bucketd_plan_compute_running"), 1) << "nothing else needs the slot";
  request.mutable_options()->set_prefetch_forward(2);
  EXPECT_EQ(GetPlan(request).source(), v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "cancelled"), 1);
  EXPECT_EQ(Metric("bucketd_plan_computations_total", "result", "error"), 0);
}

TEST_F(WaitTest, WhatNobodyWaitsForLeavesTheQueue) {
  plan_function_ = gate_.Guard(ComputePlan);
  options_.compute_slots = 1;
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  v1::GetPlanRequest request = RequestFor(ForwardGraph());
  std::future<Reply> running = GetPlanAsync(request);
  gate_.WaitUntilEntered(1);
  request.mutable_options()->set_prefetch_forward(2);
  EXPECT_EQ(ReasonOf(GetPlanInVain(request).status), "DEADLINE");
  EXPECT_TRUE(Eventually([&] { return Metric("bucketd_plan_compute_queued") == 0; }));
  EXPECT_GE(Metric("bucketd_plan_computations_dropped_total"), 1);
  gate_.Open();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_EQ(gate_.entered(), 1);
}

TEST_F(WaitTest, WhoHasMostOfTheQueueGivesWay) {
  plan_function_ = gate_.Guard(ComputePlan);
  options_.compute_slots = 1;
  options_.compute_queue = 2;
  StartServer();
  std::vector<std::future<Reply>> calls;
  for (const char* tenant : {"a", "a", "a", "b"}) {
    const int before = static_cast<int>(calls.size());
    v1::UploadHeader header = HeaderFor(ForwardGraph());
    header.set_tenant(tenant);
    ASSERT_TRUE(Upload(header, {Zstd(ForwardGraph().bytes)}).ok());
    v1::GetPlanRequest request = RequestFor(ForwardGraph());
    request.set_tenant(tenant);
    request.mutable_options()->set_prefetch_forward(static_cast<uint32_t>(1 + before));
    calls.push_back(GetPlanAsync(request));
    if (before == 0) gate_.WaitUntilEntered(1);
    ASSERT_TRUE(EventuallyWaiting(std::min(before + 1, 3)));
  }
  EXPECT_EQ(ReasonOf(calls[2].get().status), "OVERLOADED");
  EXPECT_EQ(Metric("bucketd_displaced_total", "what", "computation"), 1);
  gate_.Open();
  for (const int kept : {0, 1, 3}) EXPECT_TRUE(calls[static_cast<size_t>(kept)].get().status.ok());
}

TEST_F(WaitTest, RefusesPlansBeyondTheComputeQueue) {
  plan_function_ = gate_.Guard(ComputePlan);
  options_.compute_slots = 1;
  options_.compute_queue = 1;
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  v1::GetPlanRequest request = RequestFor(ForwardGraph());
  std::future<Reply> running = GetPlanAsync(request);
  gate_.WaitUntilEntered(1);
  request.mutable_options()->set_prefetch_forward(2);
  std::future<Reply> queued = GetPlanAsync(request);
  ASSERT_TRUE(EventuallyWaiting(2));
  request.mutable_options()->set_prefetch_forward(3);
  const Reply refused = GetPlan(request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(refused.status), "OVERLOADED");
  EXPECT_GT(RetryDelayMillis(refused.status), 0);
  gate_.Open();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_TRUE(queued.get().status.ok());
  EXPECT_TRUE(GetPlan(request).status.ok()) << "the refusal was not remembered";
}

TEST_F(WaitTest, RefusesCallersBeyondTheWaitingRoom) {
  plan_function_ = gate_.Guard(ComputePlan);
  options_.max_waiting = 2;
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  std::future<Reply> one = GetPlanAsync(request);
  std::future<Reply> two = GetPlanAsync(request);
  ASSERT_TRUE(EventuallyWaiting(2));
  const Reply refused = GetPlan(request);
  EXPECT_EQ(ReasonOf(refused.status), "OVERLOADED");
  EXPECT_EQ(MetadataOf(refused.status, "limit"), "2");
  EXPECT_EQ(MetadataOf(refused.status, "actual"), "") << "how many others there are";
  gate_.Open();
  EXPECT_TRUE(one.get().status.ok());
  EXPECT_TRUE(two.get().status.ok());
}

TEST_F(WaitTest, RemembersABoundedNumberOfGraphsThatItAskedFor) {
  options_.max_waiting = 2;
  StartServer();
  v1::GetPlanRequest request = RequestFor(ForwardGraph());
  ASSERT_TRUE(GetPlan(request).asked_to_upload());
  request.set_graph_digest(std::string(32, 'a'));
  ASSERT_TRUE(GetPlan(request).asked_to_upload());
  request.set_graph_digest(std::string(32, 'b'));
  EXPECT_TRUE(GetPlan(request).asked_to_upload()) << "the oldest is forgotten";
  request = RequestFor(ForwardGraph());
  EXPECT_TRUE(GetPlan(request).asked_to_upload()) << "as if nobody had been asked";
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  EXPECT_TRUE(GetPlan(request).response.has_plan());
}

}  // namespace
}  // namespace bucketd
