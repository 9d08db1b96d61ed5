// The C++ client against a real server: plans, and what becomes of calls when the server is busy,
// draining, silent, cut off or gone.
#include "client/planner_client.h"

#include <unistd.h>

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/admin_client.h"
#include "client/channel.h"
#include "client/circuit_breaker.h"
#include "client/errors.h"
#include "client/remote_plan.h"
#include "client/retrying_client.h"
#include "grpcpp/support/validate_service_config.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

#include "passes/io/fx_json.h"
#include "passes/io/plan_json.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "passes/planner.h"
#include "proto/error.pb.h"
#include "proto/graph.pb.h"
#include "tests/client/client_queries.h"
#include "tests/client/relay.h"
#include "tests/client/server_process.h"
#include "tests/temp_folder.h"

namespace bucketd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Admission = CircuitBreaker::Admission;

PlanQuery Forward() { return QueryFor("llama3_debug_fsdp8.fw.json.gz"); }
PlanQuery Backward() { return QueryFor("llama3_debug_fsdp8.bw.json.gz"); }

class PlannerClientTest : public ::testing::Test {
 protected:
  void StartServer(const std::vector<std::string>& flags = {}) {
    server_ = std::make_unique<ServerProcess>(address_, flags);
  }
  std::unique_ptr<PlannerClient> NewClient(const std::string& address, ClientOptions options = {}) {
    options.own_connection = true;
    options.log = [this](absl::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    };
    return std::make_unique<PlannerClient>(address, options);
  }
  std::unique_ptr<PlannerClient> NewClient() { return NewClient(address_); }

  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
  const std::string address_ = absl::StrCat("unix:", folder_, "/socket");
  std::unique_ptr<ServerProcess> server_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

const std::vector<std::string> kInPieces = {"--max-inline-bytes", "0", "--max-chunk-bytes", "1024"};

TEST_F(PlannerClientTest, SendsTheGraphOnceAndHitsAfterwards) {
  StartServer();
  const auto client = NewClient();
  const absl::StatusOr<PlanReply> first = client->GetPlan(Backward());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->source, v1::PLAN_SOURCE_COMPUTED);
  EXPECT_EQ(first->sha256, Sha256(first->plan));
  const absl::StatusOr<Plan> plan = ParsePlan(first->plan);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->graph_digest, Backward().digest);
  EXPECT_FALSE(plan->buckets.empty());

  PlanQuery again = Backward();
  again.graph = [] {
    ADD_FAILURE() << "the graph was asked for";
    return absl::InternalError("");
  };
  const absl::StatusOr<PlanReply> second = NewClient()->GetPlan(again);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->source, v1::PLAN_SOURCE_HIT);
  EXPECT_EQ(second->plan, first->plan);
  EXPECT_TRUE(lines_.empty());
}

TEST_F(PlannerClientTest, SendsALargeGraphInChunks) {
  StartServer(kInPieces);
  const auto client = NewClient();
  const absl::StatusOr<PlanReply> reply = client->GetPlan(Backward());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(client->counters().uploads, 1);
  EXPECT_EQ(client->counters().resumed_uploads, 0);
}

TEST_F(PlannerClientTest, AnUploadThatBrokeGoesOnWhereItStopped) {
  StartServer(kInPieces);
  const std::string path = absl::StrCat(folder_, "/relay");
  Relay relay(path, absl::StrCat(folder_, "/socket"), {12'000, 6'000});
  const auto client = NewClient("unix:" + path);
  const absl::StatusOr<PlanReply> reply = client->GetPlan(Backward());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(relay.cut(), 2);
  EXPECT_EQ(client->counters().uploads, 3);
  EXPECT_GE(client->counters().resumed_uploads, 1);
  EXPECT_EQ(lines_.size(), 1) << "one cause, one line";
}

TEST_F(PlannerClientTest, ErrorsCarryTheReasonOfTheServer) {
  StartServer();
  PlanQuery query = Forward();
  query.options.set_mode("no such mode");
  const absl::Status error = NewClient()->GetPlan(query).status();
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(error), "OPTIONS_INVALID");
  EXPECT_TRUE(absl::StrContains(error.message(), "transformer_block")) << error;

  query = Forward();
  query.graph = [] { return absl::DataLossError("the file is gone"); };
  EXPECT_EQ(NewClient()->GetPlan(query).status(), absl::DataLossError("the file is gone"));
}

TEST_F(PlannerClientTest, PlanningThatIsSwitchedOffIsAnAnswerAndNotRepeated) {
  StartServer();
  const auto client = NewClient();
  ASSERT_TRUE(client->GetPlan(Forward()).ok());
  v1::SetPlanningRequest off;
  off.set_why("the fabric is being serviced");
  ASSERT_TRUE(AdminClient(address_).SetPlanning(off).ok());
  const absl::Status alone = client->GetPlan(Forward()).status();
  EXPECT_EQ(ReasonOf(alone), "PLANNING_DISABLED") << "a hit, too: other ranks may have none";
  PlanQuery query = Forward();
  query.job = Job{.id = "train", .scope = "0/fw", .ranks = {0}, .size = 2};
  const absl::Status unplanned = client->GetPlan(query).status();
  EXPECT_EQ(ReasonOf(unplanned), kUnplanned);
  for (const absl::Status& status : {alone, unplanned}) {
    EXPECT_TRUE(absl::StrContains(status.message(), "the fabric is being serviced")) << status;
  }
  EXPECT_EQ(client->counters().waits, 0);
  EXPECT_EQ(client->counters().breaker_opens, 0) << "it answers";
  v1::SetPlanningRequest on;
  on.set_enabled(true);
  ASSERT_TRUE(AdminClient(address_).SetPlanning(on).ok());
  EXPECT_TRUE(client->GetPlan(Forward()).ok());
}

TEST_F(PlannerClientTest, AGraphThatIsTooLargeIsNotSent) {
  StartServer({"--max-graph-bytes", "1000"});
  const auto client = NewClient();
  EXPECT_EQ(ReasonOf(client->GetPlan(Forward()).status()), "GRAPH_TOO_LARGE");
  EXPECT_EQ(client->counters().uploads, 0);
}

TEST_F(PlannerClientTest, ThreadsShareAClient) {
  StartServer(kInPieces);
  const auto client = NewClient();
  std::atomic<int> computed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const absl::StatusOr<PlanReply> reply = client->GetPlan(Backward());
      ASSERT_TRUE(reply.ok()) << reply.status();
      computed += reply->source == v1::PLAN_SOURCE_COMPUTED ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(computed, 1);
}

TEST_F(PlannerClientTest, TheDeadlineIsKeptByAServerThatSaysNothing) {
  StartServer();
  const auto client = NewClient();
  ASSERT_TRUE(client->GetPlan(Forward()).ok());
  server_->Stop();
  PlanQuery query = Forward();
  query.deadline = milliseconds(1500);
  const auto begin = steady_clock::now();
  const absl::Status error = client->GetPlan(query).status();
  EXPECT_EQ(ReasonOf(error), kDeadline) << error;
  EXPECT_LT(steady_clock::now() - begin, seconds(10));
}

TEST_F(PlannerClientTest, AConnectionWaitsForAServerThatIsSlowToSpeak) {
  StartServer();
  server_->Stop();
  AdminClient admin(address_);
  absl::StatusOr<v1::GetStatusResponse> status = absl::UnknownError("");
  std::thread asks([&] { status = admin.GetStatus(); });
  std::this_thread::sleep_for(seconds(1));
  server_->Continue();
  asks.join();
  EXPECT_TRUE(status.ok()) << status.status();
}

TEST_F(PlannerClientTest, AServerThatComesBackIsAskedAgain) {
  StartServer();
  const auto client = NewClient();
  ASSERT_TRUE(client->GetPlan(Forward()).ok());
  server_.reset();
  absl::StatusOr<PlanReply> reply = absl::UnknownError("");
  std::thread asks([&] { reply = client->GetPlan(Forward()); });
  StartServer();
  asks.join();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->source, v1::PLAN_SOURCE_COMPUTED);
}

TEST_F(PlannerClientTest, AnOverloadedServerIsAskedAgainWhenItSaid) {
  StartServer({"--max-waiting-ranks", "1"});
  // Until its deadline a rank whose peer never comes has the only place.
  PlanQuery lonely = Forward();
  lonely.job = Job{.id = "lonely", .scope = "0/fw", .ranks = {0}, .size = 2};
  lonely.deadline = milliseconds(2500);
  std::thread waits([&] { EXPECT_FALSE(NewClient()->GetPlan(lonely).ok()); });
  AdminClient admin(address_);
  while (admin.GetStatus()->jobs_waiting() == 0) std::this_thread::yield();
  const auto client = NewClient();
  PlanQuery query = Backward();
  query.job = Job{.id = "other", .scope = "0/bw", .ranks = {0}, .size = 1};
  const absl::StatusOr<PlanReply> reply = client->GetPlan(query);
  waits.join();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_GE(client->counters().waits, 1);
  ASSERT_EQ(lines_.size(), 1);
  EXPECT_TRUE(absl::StrContains(lines_[0], "GetPlan has to wait: OVERLOADED")) << lines_[0];
}

TEST_F(PlannerClientTest, ADrainingServerIsObeyedUpToTheDeadline) {
  StartServer({"--lame-duck-ms", "60000", "--drain-seconds", "60"});
  const auto client = NewClient();
  ASSERT_TRUE(client->GetPlan(Forward()).ok());
  server_->Terminate();
  AdminClient admin(address_);
  while (admin.GetStatus()->state() != "draining") std::this_thread::yield();
  PlanQuery query = Backward();
  query.deadline = seconds(6);
  const auto begin = steady_clock::now();
  absl::Status error = client->GetPlan(query).status();
  EXPECT_TRUE(absl::StrContains(error.message(), "DRAINING")) << error;
  EXPECT_LT(steady_clock::now() - begin, seconds(10));
  EXPECT_GE(client->counters().waits, 1);
  EXPECT_EQ(client->counters().breaker_opens, 0) << "it answers";
}

TEST_F(PlannerClientTest, AnAddressThatDoesNotAnswerIsGivenUpAndTriedAgain) {
  ClientOptions options;
  options.connect_timeout = milliseconds(200);
  options.breaker.cooldown = milliseconds(1000);
  const auto client = NewClient(address_, options);
  for (int i = 0; i < 2; ++i) {
    const absl::Status error = client->GetPlan(Forward()).status();
    EXPECT_EQ(ReasonOf(error), kUnreachable);
    EXPECT_TRUE(absl::StrContains(error.message(), "nobody answers")) << error;
    EXPECT_TRUE(absl::StrContains(error.message(), "No such file or directory")) << error;
  }
  const auto begin = steady_clock::now();
  const absl::Status error = client->GetPlan(Forward()).status();
  EXPECT_EQ(ReasonOf(error), kUnreachable);
  EXPECT_TRUE(absl::StrContains(error.message(), "it will be tried again in")) << error;
  EXPECT_LT(steady_clock::now() - begin, milliseconds(200));
  EXPECT_EQ(client->counters().fast_failures, 1);
  EXPECT_EQ(client->counters().breaker_opens, 1);
  EXPECT_EQ(lines_.size(), 2) << "went away, given up";

  StartServer();
  absl::StatusOr<PlanReply> reply = absl::UnknownError("");
  const auto until = steady_clock::now() + seconds(60);
  do {
    reply = client->GetPlan(Forward());
  } while (!reply.ok() && steady_clock::now() < until);
  EXPECT_TRUE(reply.ok()) << reply.status();
}

TEST_F(PlannerClientTest, AForkedChildIsTold) {
  StartServer();
  const auto client = NewClient();
  ASSERT_TRUE(client->GetPlan(Forward()).ok());
  const pid_t pid = fork();
  if (pid == 0) {
    const absl::Status error = client->GetPlan(Forward()).status();
    _exit(absl::IsFailedPrecondition(error) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(client->GetPlan(Forward()).ok());
}

TEST_F(PlannerClientTest, ACapturedGraphGetsThePlanThatIsMadeInProcess) {
  StartServer();
  const auto client = NewClient();
  for (const char* name : {"llama3_debug_fsdp8.fw.json.gz", "llama3_debug_fsdp8.bw.json.gz"}) {
    const absl::StatusOr<CapturedGraph> captured = ReadGraph(name);
    ASSERT_TRUE(captured.ok()) << captured.status();
    const absl::StatusOr<CostProfile> profile = FindProfile("slow_network");
    ASSERT_TRUE(profile.ok());
    const absl::StatusOr<Costs> costs =
        Costs::FromDeviceModel(captured->graph, captured->mesh, *profile);
    ASSERT_TRUE(costs.ok()) << costs.status();
    PlanOptions options;
    options.mode = "greedy";
    absl::StatusOr<Plan> expected = MakePlan(captured->graph, *costs, options);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const absl::StatusOr<Plan> remote =
        PlanCaptured(*client, *captured, options, "slow_network", std::chrono::minutes(1));
    ASSERT_TRUE(remote.ok()) << remote.status();
    expected->graph_digest = remote->graph_digest;
    for (Prediction* figures : {&expected->prediction, &expected->program_order}) {
      figures->busiest_group_ps = 0;  // which the wire does not carry
      figures->peak_at = kNoNode;
    }
    EXPECT_TRUE(PlanToJson(captured->graph, *remote) == PlanToJson(captured->graph, *expected))
        << name;
  }
}

TEST(Channel, TheServiceConfigIsOneThatGrpcTakes) {
  EXPECT_EQ(grpc::experimental::ValidateServiceConfigJSON(
                ServiceConfig({.retried = {"bucketd.v1.Planner", "bucketd.v1.Admin/GetStatus"},
                               .not_retried = {"bucketd.v1.Planner/UploadGraph"}})),
            "");
  EXPECT_EQ(grpc::experimental::ValidateServiceConfigJSON(ServiceConfig({})), "");
}

TEST(Channel, ErrorsWithoutAReasonGetOneByTheirCode) {
  const auto reason = [](grpc::StatusCode code) {
    return ReasonOf(FromRpc(grpc::Status(code, "text"), "GetPlan at nowhere"));
  };
  EXPECT_EQ(reason(grpc::StatusCode::UNAVAILABLE), kUnreachable);
  EXPECT_EQ(reason(grpc::StatusCode::CANCELLED), kUnreachable);
  EXPECT_EQ(reason(grpc::StatusCode::DEADLINE_EXCEEDED), kDeadline);
  EXPECT_EQ(reason(grpc::StatusCode::UNIMPLEMENTED), kProtocol);
  EXPECT_EQ(FromRpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "t", "no details"), "x").message(),
            "UNREACHABLE: x: t");
  EXPECT_TRUE(FromRpc(grpc::Status::OK, "x").ok());
}

// What a server says that is overloaded, and asks to come back after so long.
grpc::Status Overloaded(int64_t whole, int32_t nanos) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(whole);
  info.mutable_retry_delay()->set_nanos(nanos);
  google::rpc::ErrorInfo why;
  why.set_reason("OVERLOADED");
  google::rpc::Status details;
  details.add_details()->PackFrom(why);
  details.add_details()->PackFrom(info);
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "text", details.SerializeAsString());
}

TEST(RetryingClient, WhereTimeIsUpTheErrorSaysWhatTheServerSaidBefore) {
  ClientOptions silent;
  silent.log = [](absl::string_view) {};
  RetryingClient calls("unix:/nobody", silent, {});
  Route route = calls.NewRoute("a graph");
  int attempts = 0;
  const auto attempt = [&](grpc::ClientContext&, const std::shared_ptr<grpc::Channel>&) {
    return ++attempts % 2 == 1 ? Overloaded(0, 0)
                               : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "");
  };
  const auto until = [] { return steady_clock::now() + seconds(60); };
  const absl::Status error = calls.Call(route, "GetPlan", until(), attempt);
  EXPECT_EQ(attempts, 2);
  EXPECT_EQ(ReasonOf(error), kDeadline);
  EXPECT_EQ(error.message(),
            "DEADLINE: no answer in time from GetPlan at unix:/nobody; "
            "before: OVERLOADED: text");

  // An answer ends what it was about.
  const auto answers = [](grpc::ClientContext&, const std::shared_ptr<grpc::Channel>&) {
    return grpc::Status::OK;
  };
  EXPECT_TRUE(calls.Call(route, "GetPlan", until(), answers).ok());
  attempts = 1;
  const absl::Status later = calls.Call(route, "GetPlan", until(), attempt);
  EXPECT_FALSE(absl::StrContains(later.message(), "before")) << later;
}

TEST(Channel, AServerThatAsksForNoPauseGetsOneAllTheSame) {
  const auto after = [](int64_t whole, int32_t nanos) {
    return RetryAfter(FromRpc(Overloaded(whole, nanos), "x"));
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(after(0, 0), milliseconds(50));
  EXPECT_EQ(after(-5, 0), milliseconds(50));
  EXPECT_EQ(after(-kMost - 1, -2'000'000'000), milliseconds(50));
  EXPECT_EQ(after(1, 500'000'000), milliseconds(1500));
  EXPECT_LT(after(kMost, 2'000'000'000), std::chrono::hours(25));
}

class BreakerTest : public ::testing::Test {
 protected:
  void Open() {
    breaker_.Failed(now_);
    ASSERT_TRUE(breaker_.Failed(now_));
  }
  CircuitBreaker breaker_{BreakerOptions{}};
  steady_clock::time_point now_{};
};

TEST_F(BreakerTest, OpensAfterFailuresInARowAndLetsOneProbeOut) {
  EXPECT_FALSE(breaker_.Failed(now_));
  EXPECT_EQ(breaker_.Admit(now_), Admission::kCall);
  EXPECT_TRUE(breaker_.Failed(now_));
  EXPECT_EQ(breaker_.Admit(now_), Admission::kRefused);
  EXPECT_GE(breaker_.Remaining(now_), seconds(30));
  EXPECT_LE(breaker_.Remaining(now_), seconds(45));
  now_ += seconds(45);
  EXPECT_EQ(breaker_.Admit(now_), Admission::kProbe);
  EXPECT_EQ(breaker_.Admit(now_), Admission::kRefused);
  EXPECT_EQ(breaker_.Remaining(now_), milliseconds(0));
  EXPECT_TRUE(breaker_.Succeeded());
  EXPECT_EQ(breaker_.Admit(now_), Admission::kCall);
}

TEST_F(BreakerTest, StaysOpenWhenTheProbeIsNotAnswered) {
  Open();
  now_ += seconds(45);
  ASSERT_EQ(breaker_.Admit(now_), Admission::kProbe);
  EXPECT_TRUE(breaker_.Failed(now_));
  EXPECT_EQ(breaker_.Admit(now_ + seconds(29)), Admission::kRefused);
  EXPECT_EQ(breaker_.Admit(now_ + seconds(45)), Admission::kProbe);
}

TEST_F(BreakerTest, FailuresLongAgoOrBeforeAnAnswerDoNotCount) {
  EXPECT_FALSE(breaker_.Failed(now_));
  now_ += seconds(121);
  EXPECT_FALSE(breaker_.Failed(now_));
  EXPECT_FALSE(breaker_.Succeeded());
  EXPECT_FALSE(breaker_.Failed(now_));
  EXPECT_EQ(breaker_.Admit(now_), Admission::kCall);
}

TEST_F(BreakerTest, ALateFailureDoesNotLengthenTheCooldown) {
  Open();
  const milliseconds before = breaker_.Remaining(now_);
  EXPECT_FALSE(breaker_.Failed(now_));
  EXPECT_EQ(breaker_.Remaining(now_), before);
}

}  // namespace
}  // namespace bucketd::client
