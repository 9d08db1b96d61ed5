// What requests may hold, at the limit and one beyond, and what refusing a large one costs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "prometheus/gauge.h"
#include "spdlog/details/null_mutex.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

#include "proto/admin.grpc.pb.h"
#include "server/plans/planning_switch.h"
#include "server/store/sqlite_store.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

constexpr char kGetPlan[] = "/bucketd.v1.Planner/GetPlan";
constexpr size_t kLarge = 1'000'000;

// Nobody's protocol buffer.
std::string Garbage(size_t bytes) { return std::string(bytes, '\xff'); }

class RequestLimitsTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    options_.intake.max_graph_bytes = options_.intake.max_upload_bytes = int64_t{1} << 20;
    options_.upload_lease = std::chrono::hours(1);  // nobody else is asked for the graph
  }
  void TearDown() override {
    Leave();
    ServerTest::TearDown();
  }

  // All are for one graph; each is for a plan of its own, and its key is somewhat longer than that.
  static v1::GetPlanRequest LargeRequest(int number) {
    v1::GetPlanRequest request = RequestFor(ForwardGraph());
    request.mutable_options()->add_parameter_order(
        absl::StrCat(number, ".", std::string(kLarge, 'x')));
    return request;
  }

  void Start() {
    StartServer();
    EXPECT_TRUE(GetPlan(RequestFor(ForwardGraph())).asked_to_upload());
  }

  // Calls that wait, one after the other, until one is refused: with what.
  grpc::Status WaitUntilRefused() {
    while (true) {
      Waiting& call = *waiting_.emplace_back(std::make_unique<Waiting>());
      call.request = LargeRequest(static_cast<int>(waiting_.size()));
      std::promise<grpc::Status> ended;
      call.ended = ended.get_future();
      stub_->async()->GetPlan(
          &call.context, &call.request, &call.response,
          [ended = std::make_shared<std::promise<grpc::Status>>(std::move(ended))](grpc::Status s) {
            ended->set_value(std::move(s));
          });
      const auto settled = [&] {
        return call.ended.wait_for(milliseconds(0)) == std::future_status::ready ||
               Metric("bucketd_waiting_callers") == static_cast<double>(waiting_.size());
      };
      if (!Eventually(settled)) return grpc::Status(grpc::StatusCode::UNKNOWN, "neither");
      if (Metric("bucketd_waiting_callers") == static_cast<double>(waiting_.size())) continue;
      grpc::Status refused = call.ended.get();
      waiting_.pop_back();
      return refused;
    }
  }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }

  void Leave() {
    for (const auto& call : waiting_) call->context.TryCancel();
    for (const auto& call : waiting_) call->ended.wait();
    waiting_.clear();
  }

 private:
  struct Waiting {
    grpc::ClientContext context;
    v1::GetPlanRequest request;
    v1::GetPlanResponse response;
    std::future<grpc::Status> ended;
  };
  std::vector<std::unique_ptr<Waiting>> waiting_;
};

// One peer gets half of what requests may hold, which is half of what is for messages.
TEST_F(RequestLimitsTest, BytesInFlight) {
  for (const int64_t messages : {int64_t{64} << 20, int64_t{160} << 20}) {
    options_.max_in_flight_bytes = options_.intake.max_upload_bytes + messages;
    Start();
    const grpc::Status refused = WaitUntilRefused();
    EXPECT_EQ(ReasonOf(refused), "OVERLOADED") << refused.error_message();
    EXPECT_GT(RetryDelayMillis(refused), 0);
    const int64_t share = messages / 4;
    EXPECT_EQ(MetadataOf(refused, "limit"), std::to_string(share)) << refused.error_message();
    const int64_t of_each = 4 * static_cast<int64_t>(kLarge);  // and a little
    EXPECT_EQ(waiting(), share / of_each) << "each holds four times its key";

    const int64_t before = waiting();
    Leave();
    ASSERT_TRUE(EventuallyWaiting(0));
    EXPECT_EQ(ReasonOf(WaitUntilRefused()), "OVERLOADED");
    EXPECT_EQ(waiting(), before) << "who left has given back what it held";
    Leave();
    StopServer();
  }
}

TEST_F(RequestLimitsTest, ALargeRequestThatHasNoRoomIsRefusedUnread) {
  options_.max_in_flight_bytes = options_.intake.max_upload_bytes + (int64_t{64} << 20);
  Start();
  EXPECT_EQ(ReasonOf(CallRaw(kGetPlan, Garbage(kLarge))), "REQUEST_MALFORMED") << "it was read";
  EXPECT_EQ(ReasonOf(WaitUntilRefused()), "OVERLOADED");
  EXPECT_EQ(ReasonOf(CallRaw(kGetPlan, Garbage(kLarge))), "OVERLOADED") << "it was not";
  EXPECT_EQ(ReasonOf(CallRaw(kGetPlan, Garbage(100))), "REQUEST_MALFORMED") << "small ones are";
}

// All lines of all levels go to `sink` for as long as this lives.
class LogTo {
 public:
  explicit LogTo(spdlog::sink_ptr sink) {
    const auto logger = std::make_shared<spdlog::logger>("test", std::move(sink));
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(logger);
  }
  ~LogTo() { spdlog::set_default_logger(before_); }

 private:
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

// Holds the threads that end the first calls of a method, which have not been answered yet.
class Holding final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit Holding(int most = 1, const char* method = "GetPlan") : most_(most), method_(method) {}
  void WaitUntilHolding(int threads = 1) {
    EXPECT_TRUE(Eventually([&] { return held_ >= threads; }));
  }
  void LetGo() { let_go_.Notify(); }

 protected:
  void sink_it_(const spdlog::details::log_msg& line) override {
    const absl::string_view text(line.payload.data(), line.payload.size());
    if (absl::StrContains(text, method_) && held_++ < most_) let_go_.WaitForNotification();
  }
  void flush_() override {}

 private:
  const int most_;
  const char* const method_;
  std::atomic<int> held_{0};
  absl::Notification let_go_;
};

// When that is depends on how its caller reads.
TEST_F(RequestLimitsTest, WhatIsRefusedHoldsNothingUntilItIsAnswered) {
  options_.max_in_flight_bytes = options_.intake.max_upload_bytes + (int64_t{64} << 20);
  options_.intake.max_chunk_bytes = int64_t{16} << 20;  // and so a message
  const auto worker = std::make_shared<Holding>();
  const LogTo log(worker);
  StartServer();
  const auto call = [this](size_t bytes) {
    return std::async(std::launch::async,
                      [this, bytes] { return CallRaw(kGetPlan, Garbage(bytes)); });
  };
  // There is room for its bytes, and none for what they would become.
  std::future<grpc::Status> refused = call(5 * kLarge);
  worker->WaitUntilHolding();
  // With the other's bytes it would not even be let in to be read.
  std::future<grpc::Status> next = call(12 * kLarge);
  EXPECT_TRUE(Eventually([&] {
    return Metric("bucketd_requests_in_flight", "method", "GetPlan") == 1 ||
           next.wait_for(milliseconds(0)) == std::future_status::ready;
  }));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(ReasonOf(CallRaw(kGetPlan, Garbage(100))), "REQUEST_MALFORMED");
  }
  worker->LetGo();
  EXPECT_EQ(MetadataOf(refused.get(), "actual"), std::to_string(4 * 5 * kLarge));
  EXPECT_EQ(MetadataOf(next.get(), "actual"), std::to_string(4 * 12 * kLarge));
}

TEST_F(RequestLimitsTest, WhateverCallersKeepBusyFilesAndTheStoreAreLookedAt) {
  options_.upload_threads = 1;
  options_.store_dir = folder_ + "/store";
  options_.tenants_file = folder_ + "/tenants.toml";
  std::ofstream(options_.tenants_file) << "[others]\nuploads = 1\n";
  const auto workers = std::make_shared<Holding>(3);
  const LogTo log(workers);
  StartServer();
  std::vector<std::future<Reply>> calls;
  for (int i = 0; i < 3; ++i) {  // one graph to be decoded, two plans to be looked for
    v1::GetPlanRequest request = RequestFor(ForwardGraph());
    request.set_graph_digest(DigestBytes(Sha256(std::to_string(i))));
    if (i == 0) request.mutable_graph()->set_data("none");
    calls.push_back(GetPlanAsync(request));
    workers->WaitUntilHolding(i + 1);
  }
  std::ofstream(options_.tenants_file) << "[others]\nuploads = 22\n";
  const auto store = SqliteStore::Open({{}, options_.store_dir});
  ASSERT_TRUE(store.ok()) << store.status();
  prometheus::Gauge gauge;
  PlanningSwitch other(**store, /*durable=*/true, gauge);
  EXPECT_TRUE(other.Set(/*enabled=*/false, "another server's", {}).ok());
  EXPECT_TRUE(Eventually([&] {
    return Metric("bucketd_planning_enabled") == 0 &&
           Metric("bucketd_tenants_reloads_total", "result", "taken") >= 1;
  }));
  workers->LetGo();
}

// What it is not read for is not its slowness.
TEST_F(RequestLimitsTest, AnUploadThatWaitsForTheServersOwnThreadHasNotStalled) {
  options_.upload_threads = 1;
  options_.upload_stall = milliseconds(500);
  const auto worker = std::make_shared<Holding>(1);
  const LogTo log(worker);
  StartServer();
  v1::GetPlanRequest other = RequestFor(ForwardGraph());
  other.set_graph_digest(DigestBytes(Sha256("another")));
  other.mutable_graph()->set_data("none");
  std::future<Reply> decoded = GetPlanAsync(other);
  worker->WaitUntilHolding();
  std::future<grpc::Status> upload =
      std::async(std::launch::async, [&] { return Upload(ForwardGraph()); });
  EXPECT_EQ(upload.wait_for(std::chrono::seconds(2)), std::future_status::timeout);
  worker->LetGo();
  const grpc::Status status = upload.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(RequestLimitsTest, TheSwitchDoesNotWaitForWhatElseOperatorsAsk) {
  const auto worker = std::make_shared<Holding>(1, "ListPlans");
  const LogTo log(worker);
  StartServer();
  const auto admin = v1::Admin::NewStub(NewChannel());
  std::future<grpc::Status> listing = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    v1::ListPlansResponse plans;
    return admin->ListPlans(&context, {}, &plans);
  });
  worker->WaitUntilHolding();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::SetPlanningRequest off;
  off.set_why("an emergency");
  v1::SetPlanningResponse set;
  const grpc::Status status = admin->SetPlanning(&context, off, &set);
  EXPECT_TRUE(status.ok()) << status.error_message();
  worker->LetGo();
  EXPECT_TRUE(listing.get().ok());
}

// Remembers the threads that end GetPlan calls, in the order in which they do.
class Threads final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::vector<size_t> TakeAll() {
    const std::lock_guard lock(mutex_);
    return std::exchange(threads_, {});
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& line) override {
    const absl::string_view text(line.payload.data(), line.payload.size());
    if (absl::StrContains(text, "GetPlan")) threads_.push_back(line.thread_id);
  }
  void flush_() override {}

 private:
  std::vector<size_t> threads_;
};

TEST_F(RequestLimitsTest, LargeRequestsAreReadOnAThreadThatIsNotGrpcs) {
  const auto ends = std::make_shared<Threads>();
  const LogTo log(ends);
  StartServer();
  const auto call_together = [&](size_t bytes) {
    std::vector<std::future<grpc::Status>> calls;
    for (int i = 0; i < 8; ++i) {
      calls.push_back(
          std::async(std::launch::async, [&, bytes] { return CallRaw(kGetPlan, Garbage(bytes)); }));
    }
    for (auto& call : calls) EXPECT_EQ(ReasonOf(call.get()), "REQUEST_MALFORMED");
    const std::vector<size_t> threads = ends->TakeAll();
    EXPECT_EQ(threads.size(), calls.size());
    return std::set<size_t>(threads.begin(), threads.end());
  };
  const std::set<size_t> small = call_together(size_t{64} << 10);
  const std::set<size_t> large = call_together((size_t{64} << 10) + 1);
  EXPECT_EQ(large.size(), 1U) << "one worker reads them";
  EXPECT_FALSE(small.contains(*large.begin())) << "and nothing else";
}

// Those beyond the limit stay at the client.
TEST_F(RequestLimitsTest, CallsAtATimeOfAConnection) {
  for (const int streams : {2, 5}) {
    options_.max_streams = streams;
    Start();
    const auto one = NewChannel();
    const auto stub = v1::Planner::NewStub(one);
    struct Call {
      grpc::ClientContext context;
      v1::GetPlanResponse response;
      std::promise<grpc::Status> ended;
    };
    const v1::GetPlanRequest request = RequestFor(ForwardGraph());
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 6; ++i) {
      Call& call = *calls.emplace_back(std::make_unique<Call>());
      stub->async()->GetPlan(&call.context, &request, &call.response,
                             [&call](grpc::Status s) { call.ended.set_value(std::move(s)); });
      ASSERT_TRUE(EventuallyWaiting(std::min(i + 1, streams)));
    }
    // A call of another connection gets in, and once it is answered the others would have come.
    v1::GetPlanRequest bad = request;
    bad.set_graph_digest("short");
    for (int i = 0; i < 100; ++i) EXPECT_EQ(ReasonOf(GetPlan(bad).status), "DIGEST_MALFORMED");
    EXPECT_EQ(Metric("bucketd_waiting_callers"), streams);
    EXPECT_EQ(Metric("bucketd_requests_in_flight", "method", "GetPlan"), streams);
    // As one leaves another one comes.
    calls.front()->context.TryCancel();
    calls.front()->ended.get_future().wait();
    EXPECT_TRUE(EventuallyWaiting(streams));
    ASSERT_TRUE(Upload(ForwardGraph()).ok());
    for (size_t i = 1; i < calls.size(); ++i) {
      EXPECT_TRUE(calls[i]->ended.get_future().get().ok());
    }
    StopServer();
  }
}

}  // namespace
}  // namespace bucketd
