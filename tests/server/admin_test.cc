// The Admin service and the kill switch, over gRPC and against a real store; bucketctl's exit
// codes.
#include "server/admin/admin.h"

#include <unistd.h>

#include <array>
#include <future>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/admin_client.h"
#include "client/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include <sys/socket.h>
#include <sys/un.h>

#include "httplib.h"
#include "server/admin/status_page.h"
#include "tests/server/fixture.h"

namespace bucketd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// --- over gRPC

class AdminServerTest : public ServerTest {
 protected:
  void StartServerWithAdmin() {
    StartServer();
    admin_ = std::make_unique<client::AdminClient>(server_->address());
  }
  Ran Ctl(const std::string& arguments) {
    return RunProgram(absl::StrCat("bucketctl ", arguments, " --server ", options_.listen));
  }
  v1::GetPlanRequest JobRequest(uint64_t generation, const std::string& job = "train") {
    v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
    request.mutable_job()->set_id(job);
    request.mutable_job()->set_generation(generation);
    request.mutable_job()->set_scope("0/fw");
    request.mutable_job()->set_size(1);
    request.mutable_job()->add_rank(0);
    return request;
  }
  absl::Status Disable(const std::string& why) {
    v1::SetPlanningRequest request;
    request.set_why(why);
    return admin_->SetPlanning(request).status();
  }
  absl::Status Enable() {
    v1::SetPlanningRequest request;
    request.set_enabled(true);
    return admin_->SetPlanning(request).status();
  }

  std::unique_ptr<client::AdminClient> admin_;
};

TEST_F(AdminServerTest, StatusSaysHowTheServerIs) {
  StartServerWithAdmin();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  ASSERT_TRUE(GetPlan(RequestFor(ForwardGraph())).status.ok());
  v1::GetPlanRequest bad = RequestFor(ForwardGraph());
  bad.set_graph_digest("x");
  ASSERT_EQ(ReasonOf(GetPlan(bad).status), "DIGEST_MALFORMED");

  const absl::StatusOr<v1::GetStatusResponse> status = admin_->GetStatus();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->state(), "serving");
  EXPECT_EQ(status->address(), server_->address());
  EXPECT_EQ(status->pid(), getpid());
  EXPECT_TRUE(status->planning().enabled());
  EXPECT_EQ(status->plans().computed(), 1);
  EXPECT_EQ(status->plans().hits(), 1);
  EXPECT_EQ(status->plans().errors(), 1);
  ASSERT_EQ(status->caches_size(), 2);
  EXPECT_EQ(status->caches(0).name(), "plans");
  EXPECT_EQ(status->caches(0).entries(), 1);
  EXPECT_GT(status->caches(0).bytes(), 0);
  EXPECT_EQ(status->caches(0).capacity_bytes(), options_.plan_cache_bytes);
  EXPECT_EQ(status->load().compute_slots(), options_.compute_slots);
  ASSERT_EQ(status->errors_size(), 1);
  EXPECT_EQ(status->errors(0).reason(), "DIGEST_MALFORMED");
  EXPECT_EQ(status->errors(0).method(), "GetPlan");
  EXPECT_FALSE(status->errors(0).request_id().empty());
}

// Leaves of `message` that have their default value, by name; of lists the first element's.
void FindUnset(const google::protobuf::Message& message, const std::string& prefix,
               std::vector<std::string>& unset) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string name = absl::StrCat(prefix, field->name());
    const bool list = field->is_repeated();
    if (list ? reflection.FieldSize(message, field) == 0 : !reflection.HasField(message, field)) {
      unset.push_back(name);
    } else if (field->message_type() != nullptr) {
      FindUnset(list ? reflection.GetRepeatedMessage(message, field, 0)
                     : reflection.GetMessage(message, field),
                name + ".", unset);
    }
  }
}

TEST_F(AdminServerTest, EveryFieldOfTheStatusIsFilledAndShown) {
  options_.store_dir = absl::StrCat(folder_, "/store");
  options_.http = "127.0.0.1:0";
  StartServerWithAdmin();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  admin_.reset();
  StopServer();

  plan_function_ = gate_.Guard(ComputePlan);
  StartServerWithAdmin();
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_HIT);  // from the store
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_HIT);
  EXPECT_TRUE(GetPlan(RequestFor(BackwardGraph())).asked_to_upload());
  std::future<Reply> first = GetPlanAsync(InlineRequestFor(BackwardGraph()));
  std::future<Reply> joins = GetPlanAsync(InlineRequestFor(BackwardGraph()));
  EXPECT_TRUE(EventuallyWaiting(2));
  gate_.Open();
  EXPECT_TRUE(first.get().status.ok() && joins.get().status.ok());
  ASSERT_TRUE(GetPlan(JobRequest(1)).response.has_plan());
  EXPECT_EQ(GetPlan(JobRequest(2)).source(), v1::PLAN_SOURCE_PINNED);
  ASSERT_TRUE(Disable("INC-7").ok());
  EXPECT_TRUE(GetPlan(JobRequest(3)).response.has_unplanned());
  ASSERT_TRUE(Enable().ok());
  // A job of a tenant that waits for its second rank until it goes.
  v1::GetPlanRequest waits = JobRequest(1, "torn");
  waits.set_tenant("team-a");
  waits.mutable_job()->set_size(2);
  std::thread rank([&] {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
    context.set_deadline(std::chrono::system_clock::now() + milliseconds(2000));
    v1::GetPlanResponse response;
    EXPECT_EQ(ReasonOf(stub_->GetPlan(&context, waits, &response)), "RANKS_MISSING");
  });
  v1::GetStatusResponse waiting;
  EXPECT_TRUE(Eventually([&] {
    waiting = *admin_->GetStatus();
    return waiting.jobs_size() > 0 && waiting.jobs(0).state() == "waiting";
  }));
  rank.join();
  v1::GetStatusResponse status = *admin_->GetStatus();
  *status.mutable_jobs() = waiting.jobs();
  status.set_jobs_total(waiting.jobs_total());
  status.set_jobs_waiting(waiting.jobs_waiting());

  std::vector<std::string> unset;
  FindUnset(status, "", unset);
  EXPECT_THAT(
      unset,
      ::testing::UnorderedElementsAre(
          // Nobody said why planning is on.
          "planning.why",
          // And what was said of it is in the store.
          "planning.not_stored",
          // Nothing was dropped, is under way, or fails.
          "caches.evictions", "load.computing", "load.queued", "load.waiting", "load.uploads",
          "given_up.callers", "given_up.computations", "given_up.uploads", "given_up.jobs",
          "given_up.abandoned", "given_up.connections", "given_up.ranks", "given_up.job_places",
          "given_up.groups", "given_up.reports", "store.error", "store.reading", "store.writing",
          "store.failed_reads", "store.failed_writes", "store.damage",
          // A rank that waits has nothing to tell yet.
          "jobs.about",
          // This server is no replica.
          "cluster", "jobs.replica", "jobs.has_lease",
          // The default tenant, which has no entry and was refused nothing.
          "tenants.tenant", "tenants.named", "tenants.quotas.refused"));
  EXPECT_EQ(status.plans().store_hits(), 1);
  EXPECT_EQ(status.plans().hits(), 2);
  EXPECT_EQ(status.plans().computed(), 1);
  EXPECT_EQ(status.plans().joined(), 1);
  EXPECT_EQ(status.plans().pinned(), 1);
  EXPECT_EQ(status.plans().unplanned(), 1);
  EXPECT_EQ(Metric("bucketd_plan_requests_total", "outcome", "store_hit"), 1);
  const std::string text = Ctl("status").output;
  EXPECT_THAT(text, AllOf(HasSubstr("1 in the store, 1 pinned; 1 computed, 1 joined"),
                          HasSubstr("1 asked for the graph, 1 unplanned, 1 errors"),
                          HasSubstr(options_.store_dir), HasSubstr("h100_nvlink@1"),
                          HasSubstr("0 reads and 0 writes failed"), HasSubstr("RANKS_MISSING"),
                          HasSubstr("the default one: pins 1 of 4,096")));
  EXPECT_THAT(text, HasSubstr("trace 4bf92f3577b34da6a3ce929d0e0e4736"));
}

// A frame of HTTP/2 that only asks for work, many times over, until the server ends the connection.
void FloodWithSettings(const std::string& socket_path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  std::string frames = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings("\0\0\0\x04\0\0\0\0\0", 9);
  for (int i = 0; i < 20'000; ++i) frames += settings;
  while (!frames.empty()) {
    const ssize_t sent = send(fd, frames.data(), frames.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    frames.erase(0, static_cast<size_t>(sent));
  }
  std::array<char, 4096> answers;
  while (recv(fd, answers.data(), answers.size(), 0) > 0) {
  }
  close(fd);
}

TEST_F(AdminServerTest, WhatWasGivenUpIsCountedAndShown) {
  plan_function_ = gate_.Guard(ComputePlan);
  options_.compute_slots = 1;
  options_.compute_queue = 2;
  options_.max_waiting = 4;
  options_.intake.max_uploads = 1;
  options_.upload_stall = std::chrono::seconds(4);  // slow after a quarter of it
  options_.max_pins_per_tenant = 1;
  StartServerWithAdmin();
  std::vector<std::future<Reply>> calls;
  const auto ask = [&](const std::string& tenant, uint32_t prefetch, milliseconds deadline) {
    v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
    request.set_tenant(tenant);
    request.mutable_options()->set_prefetch_forward(prefetch);
    calls.push_back(GetPlanAsync(request, deadline));
  };
  const auto given_up = [&] { return admin_->GetStatus()->given_up(); };
  constexpr auto kPatient = std::chrono::minutes(1);
  ask("a", 1, kPatient);
  gate_.WaitUntilEntered(1);
  ask("a", 2, std::chrono::seconds(1));  // queued, until its caller goes
  EXPECT_TRUE(Eventually([&] { return given_up().abandoned() == 1; }));
  ASSERT_TRUE(EventuallyWaiting(1));
  ask("a", 3, kPatient);
  ASSERT_TRUE(EventuallyWaiting(2));
  ask("a", 4, kPatient);
  ASSERT_TRUE(EventuallyWaiting(3));
  ask("b", 1, kPatient);  // the queue is full: a's newest gives way
  EXPECT_EQ(ReasonOf(calls[3].get().status), "OVERLOADED");
  EXPECT_TRUE(EventuallyWaiting(3));
  ask("a", 1, kPatient);  // joins the first
  ASSERT_TRUE(EventuallyWaiting(4));
  ask("b", 1, kPatient);  // nobody else may wait: a's newest gives way
  EXPECT_EQ(ReasonOf(calls[5].get().status), "OVERLOADED");
  gate_.Open();
  for (const size_t kept : {0U, 2U, 4U, 6U}) EXPECT_TRUE(calls[kept].get().status.ok()) << kept;

  EXPECT_TRUE(Eventually([&] { return Metric("bucketd_uploads_in_flight") == 0; }));
  OpenUpload slow(*stub_, HeaderFor(BackwardGraph()));
  EXPECT_TRUE(Eventually([&] { return Metric("bucketd_uploads_in_flight") == 1; }));
  v1::UploadHeader other = HeaderFor(BackwardGraph());
  other.set_tenant("b");
  EXPECT_TRUE(Eventually([&] { return Upload(other, {Zstd(BackwardGraph().bytes)}).ok(); }));
  EXPECT_FALSE(slow.Finish().ok());

  ASSERT_TRUE(GetPlan(JobRequest(1, "one")).response.has_plan());
  ASSERT_TRUE(GetPlan(JobRequest(1, "two")).response.has_plan());
  FloodWithSettings(absl::StrCat(folder_, "/socket"));
  EXPECT_TRUE(Eventually([&] { return given_up().connections() == 1; }));

  const v1::GivenUp now = given_up();
  EXPECT_EQ(now.callers(), 1);
  EXPECT_EQ(now.computations(), 1);
  EXPECT_EQ(now.uploads(), 1);
  EXPECT_EQ(now.jobs(), 1);
  EXPECT_EQ(now.abandoned(), 1);
  EXPECT_THAT(Ctl("status").output,
              HasSubstr("given up    1 callers, 0 ranks, 0 jobs, 1 computations, 1 uploads, 0 "
                        "reports and 0 groups made room for others; 1 jobs lost their pins to "
                        "others of their tenant; 1 computations had no caller left; 1 connections "
                        "flooded"));
}

TEST_F(AdminServerTest, RanksAndJobsThatGaveWayAreCountedApart) {
  options_.max_jobs = 2;
  options_.max_waiting_ranks = 4;
  StartServerWithAdmin();
  std::vector<std::future<Reply>> calls;
  const auto ask = [&](const std::string& tenant, const std::string& job, uint32_t rank) {
    v1::GetPlanRequest request = JobRequest(1, job);
    request.set_tenant(tenant);
    request.mutable_job()->set_size(6);
    request.mutable_job()->set_rank(0, rank);
    calls.push_back(GetPlanAsync(request));
  };
  const auto wait = [&](int ranks) {
    return Eventually([&] { return Metric("bucketd_agreement_waiting_ranks") == ranks; });
  };
  ask("b", "1", 0);
  ASSERT_TRUE(wait(1));
  ask("b", "2", 0);
  ASSERT_TRUE(wait(2));
  ASSERT_TRUE(GetPlan(JobRequest(1, "ours")).response.has_plan());
  EXPECT_EQ(ReasonOf(calls[1].get().status), "OVERLOADED") << "one of b's jobs gives way";
  for (const uint32_t rank : {1U, 2U, 3U}) {
    ask("b", "1", rank);
    ASSERT_TRUE(wait(static_cast<int>(rank) + 1));
  }
  ask("", "more", 0);
  EXPECT_EQ(ReasonOf(calls[4].get().status), "OVERLOADED") << "and one of its ranks";
  EXPECT_THAT(Ctl("status").output, HasSubstr("0 callers, 1 ranks, 1 jobs, "));
  server_->BeginDrain();
}

TEST_F(AdminServerTest, StatusCountsAllScopesThatWaitAlsoThoseThatItDoesNotList) {
  StartServerWithAdmin();
  constexpr size_t kScopes = 101;
  std::vector<grpc::ClientContext> contexts(kScopes);
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < kScopes; ++i) {
    ranks.emplace_back([&, i] {
      v1::GetPlanRequest request = JobRequest(1, absl::StrCat("job", i));
      request.mutable_job()->set_size(2);
      v1::GetPlanResponse response;
      EXPECT_FALSE(stub_->GetPlan(&contexts[i], request, &response).ok());
    });
  }
  EXPECT_TRUE(Eventually([&] { return admin_->GetStatus()->jobs_waiting() == kScopes; }));
  EXPECT_EQ(admin_->GetStatus()->jobs_size(), 100);
  EXPECT_THAT(Ctl("status").output, HasSubstr("101 scopes in agreement, 101 waiting for ranks"));
  EXPECT_THAT(StatusPage(*admin_->GetStatus()), HasSubstr("101 that wait for ranks"));
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(AdminServerTest, PlansAreListedAndEvictedByKeyGraphAndTenant) {
  StartServerWithAdmin();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  v1::GetPlanRequest of_tenant = InlineRequestFor(BackwardGraph());
  of_tenant.set_tenant("team-a");
  ASSERT_TRUE(GetPlan(of_tenant).status.ok());

  v1::ListPlansRequest request;
  request.set_with_keys(true);
  absl::StatusOr<v1::ListPlansResponse> plans = admin_->ListPlans(request);
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->plans_size(), 2);
  request.mutable_selection()->set_tenant("team-a");
  plans = admin_->ListPlans(request);
  ASSERT_EQ(plans->plans_size(), 1);
  const v1::PlanInfo& plan = plans->plans(0);
  EXPECT_EQ(plan.graph_digest(), ToHex(BackwardGraph().digest));
  EXPECT_EQ(plan.tenant(), "team-a");
  EXPECT_EQ(plan.key_sha256(), ToHex(Sha256(plan.key())));
  EXPECT_TRUE(plan.in_memory());
  EXPECT_THAT(plan.key(), HasSubstr("planner="));

  v1::EvictPlansRequest evict;
  EXPECT_EQ(client::ReasonOf(admin_->EvictPlans(evict).status()), "REQUEST_MALFORMED")
      << "an empty selection is a slip, not an order";
  evict.mutable_selection()->set_key_sha256(plan.key_sha256().substr(0, 12));
  ASSERT_TRUE(admin_->EvictPlans(evict).ok());
  of_tenant.set_cached_only(true);
  of_tenant.clear_graph();
  EXPECT_EQ(ReasonOf(GetPlan(of_tenant).status), "PLAN_NOT_CACHED");
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_HIT);

  evict.mutable_selection()->clear_key_sha256();
  evict.mutable_selection()->set_graph_digest(
      ToHex(ForwardGraph().digest).substr(0, 12));  // as bucketctl plans shows it
  const absl::StatusOr<v1::EvictPlansResponse> gone = admin_->EvictPlans(evict);
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_EQ(gone->from_memory(), 1);
  v1::GetPlanRequest again = RequestFor(ForwardGraph());
  again.set_cached_only(true);
  EXPECT_EQ(ReasonOf(GetPlan(again).status), "PLAN_NOT_CACHED");
  EXPECT_EQ(Metric("bucketd_plan_cache_entries"), 0);
}

TEST_F(AdminServerTest, SelectionsThatMakeNoSenseAreRefused) {
  StartServerWithAdmin();
  const auto expect_refused = [&](auto edit, bool all = false) {
    v1::EvictPlansRequest request;
    request.set_all(all);
    edit(*request.mutable_selection());
    EXPECT_EQ(client::ReasonOf(admin_->EvictPlans(request).status()), "REQUEST_MALFORMED");
  };
  expect_refused([](v1::PlanSelection& s) { s.set_key_sha256("abc"); });
  expect_refused([](v1::PlanSelection& s) { s.set_key_sha256("ABCDEF0123"); });
  expect_refused([](v1::PlanSelection& s) { s.set_graph_digest("abcdef"); });
  expect_refused([](v1::PlanSelection& s) { s.set_not_used_since_ms(-1); });
  expect_refused([](v1::PlanSelection& s) { s.set_tenant("a"); }, /*all=*/true);
  // Of a later version: whoever asks for some plans does not mean all.
  expect_refused([](v1::PlanSelection& s) {
    s.GetReflection()->MutableUnknownFields(&s)->AddVarint(1000, 1);
  });
  v1::ListPlansRequest list;
  list.set_limit(10'001);
  EXPECT_EQ(client::ReasonOf(admin_->ListPlans(list).status()), "REQUEST_MALFORMED");
}

TEST_F(AdminServerTest, WhilePlanningIsOffCallsWithoutAJobAreRefusedHitsToo) {
  StartServerWithAdmin();
  ASSERT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok());
  EXPECT_EQ(Metric("bucketd_planning_enabled"), 1);
  ASSERT_TRUE(Disable("INC-7: loss spikes").ok());
  EXPECT_EQ(Metric("bucketd_planning_enabled"), 0);
  const Reply refused = GetPlan(RequestFor(ForwardGraph()));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(refused.status), "PLANNING_DISABLED");
  EXPECT_THAT(refused.status.error_message(), HasSubstr("INC-7: loss spikes"));
  const auto status = admin_->GetStatus();
  EXPECT_FALSE(status->planning().enabled());
  EXPECT_EQ(status->planning().why(), "INC-7: loss spikes");
  EXPECT_GT(status->planning().since_ms(), 0);
  ASSERT_TRUE(Enable().ok());
  EXPECT_EQ(GetPlan(RequestFor(ForwardGraph())).source(), v1::PLAN_SOURCE_HIT);
}

TEST_F(AdminServerTest, WhilePlanningIsOffNewGenerationsStayUnplannedAndOldOnesKeepTheirPlan) {
  StartServerWithAdmin();
  ASSERT_TRUE(GetPlan(JobRequest(1)).response.has_plan());
  ASSERT_TRUE(Disable("INC-7").ok());
  EXPECT_TRUE(GetPlan(JobRequest(1)).response.has_plan()) << "it has agreed";
  const Reply second = GetPlan(JobRequest(2));
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(second.response.unplanned().why(), "INC-7");
  ASSERT_TRUE(Enable().ok());
  EXPECT_TRUE(GetPlan(JobRequest(2)).response.has_unplanned()) << "all ranks of it alike";
  EXPECT_TRUE(GetPlan(JobRequest(3)).response.has_plan());
}

TEST_F(AdminServerTest, SwitchingOffNeedsAReasonOfSomeLength) {
  StartServerWithAdmin();
  EXPECT_EQ(client::ReasonOf(Disable("")), "REQUEST_MALFORMED");
  EXPECT_TRUE(Disable(std::string(PlanningSwitch::kMaxWhyBytes, 'x')).ok());
  ASSERT_TRUE(Enable().ok());
  EXPECT_EQ(client::ReasonOf(Disable(std::string(PlanningSwitch::kMaxWhyBytes + 1, 'x'))),
            "REQUEST_MALFORMED");
  EXPECT_TRUE(GetPlan(InlineRequestFor(ForwardGraph())).status.ok()) << "nothing has changed";
}

TEST_F(AdminServerTest, AServerWithoutAdminSaysSo) {
  options_.admin = "off";
  StartServerWithAdmin();
  const absl::Status status = admin_->GetStatus().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(client::ReasonOf(status), "ADMIN_NOT_ALLOWED");
}

TEST_F(AdminServerTest, BucketctlShowsAndChangesARunningServer) {
  StartServerWithAdmin();
  ASSERT_TRUE(GetPlan(JobRequest(1)).response.has_plan());
  auto [status, zero] = Ctl("status");
  EXPECT_EQ(zero, 0) << status;
  EXPECT_THAT(status, AllOf(HasSubstr("serving"), HasSubstr("1 computed")));
  const nlohmann::json json = nlohmann::json::parse(Ctl("status --json").output);
  EXPECT_EQ(json.at("plans").at("computed"), 1);
  EXPECT_THAT(Ctl("plans").output, HasSubstr(ToHex(ForwardGraph().digest).substr(0, 12)));
  EXPECT_THAT(Ctl("jobs").output,
              AllOf(HasSubstr("train"), HasSubstr("0/fw"), HasSubstr("agreed")));
  EXPECT_THAT(Ctl("pin train --for 40d").output, HasSubstr("pinned 1 plans of job train until"));
  EXPECT_THAT(Ctl("pin train --release").output, HasSubstr("released 1 plans"));
  ASSERT_TRUE(GetPlan(JobRequest(2)).response.has_plan());
  EXPECT_EQ(Ctl("pin 'tr*' --all").exit, 2) << "jobs are kept one by one";
  EXPECT_THAT(Ctl("pin 'x*' --release --all").output, HasSubstr("released 0 plans of 0 jobs"));
  EXPECT_THAT(Ctl("pin 'tr*' --release --all").output, HasSubstr("released 1 plans of 1 jobs"));
  EXPECT_EQ(Ctl("pin nobody").exit, 1);
  EXPECT_THAT(Ctl("evict --all").output, HasSubstr("evicted 1 plans from memory"));
  EXPECT_EQ(Ctl("evict").exit, 2);
  EXPECT_EQ(Ctl("disable").exit, 2) << "why is missing";
  EXPECT_EQ(Ctl("disable --why INC-7").exit, 0);
  EXPECT_THAT(Ctl("status").output, HasSubstr("INC-7"));
  EXPECT_THAT(Ctl("enable").output, HasSubstr("planning is on"));
  EXPECT_EQ(Ctl("plans --frobnicate").exit, 2);
  EXPECT_THAT(Ctl("plans --limt 3").output,
              HasSubstr("there is no flag --limt; did you mean --limit?"));
  server_.reset();
  const auto [unreachable, three] = Ctl("status");
  EXPECT_EQ(three, 3) << "nobody is there";
  EXPECT_THAT(unreachable, HasSubstr("BUCKETD_ADDRESS say where to ask"));
}

TEST_F(AdminServerTest, TheStatusPageShowsTheSameForPeopleAndScripts) {
  options_.http = "127.0.0.1:0";
  StartServerWithAdmin();
  v1::GetPlanRequest bad = RequestFor(ForwardGraph());
  bad.mutable_options()->set_mode("<script>alert(1)</script>");
  ASSERT_FALSE(GetPlan(bad).status.ok());
  const std::string address = server_->http_address();
  const size_t colon = address.rfind(':');
  httplib::Client client(address.substr(0, colon), std::stoi(address.substr(colon + 1)));
  const std::string page = client.Get("/statusz")->body;
  EXPECT_THAT(page, AllOf(HasSubstr("serving"), HasSubstr("OPTIONS_INVALID"),
                          HasSubstr("&lt;script&gt;"), Not(HasSubstr("<script"))));
  const nlohmann::json json = nlohmann::json::parse(client.Get("/statusz?format=json")->body);
  EXPECT_EQ(json.at("state"), "serving");
  EXPECT_EQ(json.at("errors").at(0).at("reason"), "OPTIONS_INVALID");
  EXPECT_TRUE(json.at("plans").at("errors").is_number());
}

}  // namespace
}  // namespace bucketd
