// From ready to gone: health, the side port, drain.
#include <fstream>
#include <future>
#include <map>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"

#include "httplib.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

using ::testing::HasSubstr;

class LifecycleTest : public ServerTest {
 protected:
  // 1 SERVING, 2 NOT_SERVING; grpc.health.v1 in the raw, as probes speak it.
  int Health(const std::string& service) {
    std::string request;
    if (!service.empty()) {
      request = "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
    }
    std::string reply;
    const grpc::Status status = CallRaw("/grpc.health.v1.Health/Check", request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.size() == 2 ? reply[1] : -1;
  }

  httplib::Result Get(const std::string& path) {
    const std::string address = server_->http_address();
    const size_t colon = address.rfind(':');
    httplib::Client client(address.substr(0, colon), std::stoi(address.substr(colon + 1)));
    return client.Get(path);
  }
};

TEST_F(LifecycleTest, AnswersHealthChecks) {
  StartServer();
  EXPECT_EQ(Health(""), 1);
  EXPECT_EQ(Health("bucketd.v1.Planner"), 1);
  std::string reply;
  const grpc::Status other = CallRaw("/grpc.health.v1.Health/Check", "\x0a\4some", &reply);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::NOT_FOUND);
  const grpc::Status nonsense = CallRaw("/grpc.health.v1.Health/Check", "\x0a\x7f", &reply);
  EXPECT_THAT(nonsense.error_message(), HasSubstr("grpc.health.v1.HealthCheckRequest"));
}

// A watch lasts for as long as its caller likes, and whoever connects could open as many as he
// likes.
TEST_F(LifecycleTest, HasNoWatchesOfHealth) {
  StartServer();
  std::string reply;
  const grpc::Status status = CallRaw("/grpc.health.v1.Health/Watch", "", &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("Check"));
}

// gRPC's reflection parses what anybody sends, and keeps it on a thread for each stream.
TEST_F(LifecycleTest, HasNoReflection) {
  StartServer();
  grpc::GenericStub stub(NewChannel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(&tag);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  grpc::Status status;
  call->Finish(&status, &tag);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(LifecycleTest, ServesMetricsThatParse) {
  options_.http = "127.0.0.1:0";
  StartServer();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  const httplib::Result result = Get("/metrics");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_TRUE(absl::StartsWith(result->get_header_value("Content-Type"), "text/plain; version="));
  std::map<std::string, double> samples;
  for (const absl::string_view line : absl::StrSplit(result->body, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, absl::string_view::npos) << line;
    double value = 0;
    ASSERT_TRUE(absl::SimpleAtod(line.substr(space + 1), &value)) << line;
    EXPECT_TRUE(absl::StartsWith(line, "bucketd_")) << line;
    samples[std::string(line.substr(0, space))] = value;
  }
  EXPECT_EQ(samples.at(R"(bucketd_requests_total{code="OK",method="GetPlan"})"), 1);
  EXPECT_EQ(samples.at(R"(bucketd_plan_requests_total{outcome="computed"})"), 1);
  EXPECT_EQ(samples.at(R"(bucketd_plan_requests_total{outcome="hit"})"), 0);
  EXPECT_EQ(samples.at(R"(bucketd_requests_total{code="UNAVAILABLE",method="UploadGraph"})"), 0);
  EXPECT_EQ(samples.at(R"(bucketd_request_seconds_count{method="GetPlan"})"), 1);
  EXPECT_EQ(samples.at("bucketd_plan_compute_seconds_count"), 1);
  EXPECT_EQ(samples.at("bucketd_plan_cache_entries"), 1);
  EXPECT_GT(samples.at("bucketd_plan_cache_bytes"), 0);
  EXPECT_GT(samples.at("bucketd_graph_cache_bytes"), 0);
  EXPECT_EQ(samples.at("bucketd_ready"), 1);
  for (const char* name :
       {"bucketd_plan_cache_evictions_total", "bucketd_graph_cache_evictions_total",
        "bucketd_uploads_in_flight", "bucketd_upload_reserved_bytes", "bucketd_waiting_callers",
        "bucketd_plan_compute_queued", "bucketd_upload_leases_expired_total"}) {
    EXPECT_EQ(samples.count(name), 1U) << name;
  }
  EXPECT_TRUE(absl::StrContains(result->body, "bucketd_build_info{"));
}

TEST_F(LifecycleTest, TurnsReadinessOffBeforeAnythingElse) {
  options_.http = "127.0.0.1:0";
  StartServer();
  ASSERT_TRUE(Get("/readyz"));
  EXPECT_EQ(Get("/readyz")->status, 200);
  EXPECT_EQ(Get("/livez")->status, 200);
  EXPECT_TRUE(absl::StrContains(Get("/statusz")->body, server_->address()));
  server_->BeginDrain();
  EXPECT_EQ(Get("/readyz")->status, 503);
  EXPECT_EQ(Get("/livez")->status, 200);
  EXPECT_EQ(Health(""), 2);
  EXPECT_EQ(Health("bucketd.v1.Planner"), 2);
  EXPECT_TRUE(absl::StrContains(Get("/statusz")->body, "draining"));
  EXPECT_EQ(Metric("bucketd_ready"), 0);
}

TEST_F(LifecycleTest, DrainFinishesWhatRunsAndRefusesWhatComes) {
  plan_function_ = gate_.Guard(ComputePlan);
  options_.upload_lease = std::chrono::minutes(10);
  StartServer();
  ASSERT_TRUE(Upload(ForwardGraph()).ok());
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  std::future<Reply> running = GetPlanAsync(request);
  gate_.WaitUntilEntered(1);
  // One that waits for a graph that nobody is sending will not see it before the end.
  const v1::GetPlanRequest other = RequestFor(BackwardGraph());
  ASSERT_TRUE(GetPlan(other).asked_to_upload());
  std::future<Reply> hopeless = GetPlanAsync(other);
  ASSERT_TRUE(EventuallyWaiting(2));

  server_->BeginDrain();
  EXPECT_EQ(ReasonOf(hopeless.get().status), "DRAINING");
  const Reply refused = GetPlan(request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(refused.status), "DRAINING");
  EXPECT_GT(RetryDelayMillis(refused.status), 0);
  EXPECT_EQ(ReasonOf(Upload(BackwardGraph())), "DRAINING");

  std::future<void> gone = std::async(std::launch::async, [&] { server_->Shutdown(); });
  gate_.Open();
  const Reply reply = running.get();
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_TRUE(reply.response.has_plan());
  gone.get();
}

TEST_F(LifecycleTest, DrainLetsAnUploadUnderWayServeThoseWhoWaitForIt) {
  StartServer();
  const v1::GetPlanRequest request = RequestFor(ForwardGraph());
  ASSERT_TRUE(GetPlan(request).asked_to_upload());
  OpenUpload upload(*stub_, HeaderFor(ForwardGraph()));
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_upload_reserved_bytes") > 0; }));
  std::future<Reply> held = GetPlanAsync(request);
  ASSERT_TRUE(EventuallyWaiting(1));
  server_->BeginDrain();
  std::future<void> gone = std::async(std::launch::async, [&] { server_->Shutdown(); });
  ASSERT_TRUE(upload.Send(Zstd(ForwardGraph().bytes)));
  EXPECT_TRUE(upload.End().ok());
  EXPECT_TRUE(held.get().response.has_plan());
  gone.get();
}

TEST_F(LifecycleTest, DrainEndsByItsDeadlineWhateverRuns) {
  options_.drain = milliseconds(100);
  options_.upload_stall = std::chrono::minutes(10);
  StartServer();
  OpenUpload upload(*stub_, HeaderFor(ForwardGraph()));
  ASSERT_TRUE(Eventually([&] { return Metric("bucketd_upload_reserved_bytes") > 0; }));
  std::future<Reply> held = GetPlanAsync(RequestFor(ForwardGraph()));
  ASSERT_TRUE(EventuallyWaiting(1));
  server_->Shutdown();
  EXPECT_FALSE(held.get().status.ok());
  EXPECT_FALSE(upload.Finish().ok());
}

TEST_F(LifecycleTest, RefusesToStartWhereItCannotServeAndSaysWhichFlag) {
  StartServer();
  const auto start = [&](ServerOptions options) {
    const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
    EXPECT_FALSE(server.ok());
    return std::string(server.status().message());
  };
  EXPECT_TRUE(absl::StartsWith(start(options_), "--listen: another server")) << start(options_);
  ServerOptions options = options_;
  options.listen = "unix:" + folder_ + "/file";
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_TRUE(absl::StartsWith(start(options), "--listen: ")) << start(options);
  options.listen = "unix:/nowhere/at/all";
  EXPECT_TRUE(absl::StartsWith(start(options), "--listen: cannot")) << start(options);
  options.listen = "unix:/" + std::string(120, 'x');
  EXPECT_TRUE(absl::StrContains(start(options), "at most 107 bytes")) << start(options);
  options.listen = "0.0.0.0:0";
  EXPECT_TRUE(absl::StrContains(start(options), "--insecure")) << start(options);
  options.listen = "nothing";
  EXPECT_TRUE(absl::StrContains(start(options), "HOST:PORT")) << start(options);
  options.listen = "127.0.0.1:0";
  options.http = "10.0.0.1:80";
  EXPECT_TRUE(absl::StartsWith(start(options), "--http: ")) << start(options);
  options.http = "";
  options.max_waiting = 0;
  EXPECT_TRUE(absl::StartsWith(start(options), "--max-waiting: ")) << start(options);
}

TEST_F(LifecycleTest, TakesOverTheSocketOfAServerThatDied) {
  StartServer();
  StopServer();
  // What a killed server leaves: a socket file on which nobody listens.
  ASSERT_EQ(std::system(("python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('" +
                         folder_ + "/socket')\"")
                            .c_str()),
            0);
  StartServer();
  EXPECT_TRUE(GetPlan(RequestFor(ForwardGraph())).asked_to_upload());
}

}  // namespace
}  // namespace bucketd
