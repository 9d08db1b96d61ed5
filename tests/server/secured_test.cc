// A server with mutual TLS: who gets in, who may do what, and whose tenant it is.
#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"

#include "httplib.h"
#include "tests/server/secured_fixture.h"

namespace bucketd {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRoles[][8] = {"plan", "report", "promote", "admin", "peer"};

// What the server asks of callers, method by method; "any": to be known, "+": and to be of all
// tenants.
const std::map<std::string, std::string> kWanted = {
    {"bucketd.v1.Planner/GetCapabilities", "any"},
    {"bucketd.v1.Planner/GetPlan", "plan"},
    {"bucketd.v1.Planner/UploadGraph", "plan peer"},
    {"bucketd.v1.Planner/QueryUpload", "plan"},
    {"bucketd.v1.Planner/ReleaseJob", "plan"},
    {"bucketd.v1.Admin/GetStatus", "admin +"},
    {"bucketd.v1.Admin/ListPlans", "admin"},
    {"bucketd.v1.Admin/EvictPlans", "admin"},
    {"bucketd.v1.Admin/ListJobs", "admin"},
    {"bucketd.v1.Admin/PinJob", "admin"},
    {"bucketd.v1.Admin/UnpinJob", "admin"},
    {"bucketd.v1.Admin/SetPlanning", "admin +"},
    {"bucketd.v1.Admin/ListAudit", "admin"},
    {"bucketd.v1.Admin/ListTenants", "plan admin"},
    {"bucketd.v1.CostProfiles/ListProfiles", "plan report promote admin"},
    {"bucketd.v1.CostProfiles/GetProfile", "plan report promote admin"},
    {"bucketd.v1.CostProfiles/ReportCosts", "report"},
    {"bucketd.v1.CostProfiles/ImportProfile", "promote +"},
    {"bucketd.v1.CostProfiles/ProposeProfile", "promote +"},
    {"bucketd.v1.CostProfiles/PromoteProfile", "promote +"},
    {"bucketd.v1.CostProfiles/RollbackProfile", "promote +"},
    {"bucketd.v1.Agents/Rendezvous", "plan"},
    {"bucketd.v1.Agents/WatchEpoch", "plan"},
    {"bucketd.v1.Agents/EndEpoch", "plan"},
    {"bucketd.v1.Peers/Forward", "peer +"},
    {"bucketd.v1.Peers/ShowJobs", "peer +"},
    {"bucketd.v1.Peers/ForgetJobs", "peer +"},
};

TEST_F(SecuredTest, EveryCallWantsTheRoleThatTheTableSays) {
  Client("nobody", "URI:spiffe://example.org/nobody,email:a@example.org");
  std::string entries;
  for (const char* role : kRoles) {
    Client(role, absl::StrCat("DNS:", role, ".example.org"));
    absl::StrAppend(&entries, Entry(absl::StrCat("DNS:", role, ".example.org"), "*", role));
  }
  WriteIdentities(entries + Entry("URI:spiffe://example.org/team-c/*", "team-c",
                                  "plan report admin promote peer"));
  Client("c", "URI:spiffe://example.org/team-c/x");
  BeAReplica();
  Start();
  const auto nobody = As("nobody"), of_a_team = As("c");
  std::map<std::string, std::shared_ptr<grpc::Channel>> with;
  for (const char* role : kRoles) with[role] = As(role);

  const std::vector<std::string> methods = AllMethods();
  EXPECT_EQ(methods.size(), kWanted.size());
  for (const std::string& method : methods) {
    ASSERT_EQ(kWanted.count(method), 1) << method << " stands in no line of the table";
    const std::vector<std::string> wanted = absl::StrSplit(kWanted.at(method), ' ');
    const grpc::Status unknown = Call(nobody, method);
    EXPECT_EQ(ReasonOf(unknown), "CALLER_UNKNOWN") << method;
    EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    for (const auto& [role, channel] : with) {
      const bool may = std::count(wanted.begin(), wanted.end(), role) > 0 || wanted[0] == "any";
      const grpc::Status status = Call(channel, method);
      const std::string reason = status.ok() ? "" : ReasonOf(status);
      if (may) {
        EXPECT_THAT(reason, Not(AnyOf("ROLE_MISSING", "CALLER_UNKNOWN", "TENANT_DIFFERS",
                                      "ADMIN_NOT_ALLOWED")))
            << method << " as " << role;
        EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method;
        continue;
      }
      EXPECT_EQ(reason, "ROLE_MISSING") << method << " as " << role;
      EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat("wants the role ", wanted[0])));
    }
    const bool of_all = wanted.back() == "+";
    const grpc::Status status = Call(of_a_team, method);
    EXPECT_EQ(!status.ok() && ReasonOf(status) == "TENANT_DIFFERS", of_all) << method;
  }
  EXPECT_EQ(Metric("bucketd_identity_refused_calls_total", "why", "unknown"), kWanted.size());
  EXPECT_GT(Metric("bucketd_identity_refused_calls_total", "why", "forbidden"), kWanted.size());
}

TEST_F(SecuredTest, OperatorsAreLetInByTheirRoleUnlessTheServiceIsOff) {
  options_.admin = "off";
  Start();
  const grpc::Status status = Call(As("ops"), "bucketd.v1.Admin/GetStatus");
  EXPECT_EQ(ReasonOf(status), "ADMIN_NOT_ALLOWED");
  EXPECT_TRUE(Ping(As("ops")).ok());
}

TEST_F(SecuredTest, ConnectsNobodyWithoutACertificateOfItsAuthorities) {
  certificates_->MakeAuthority("foreign");
  certificates_->Make("stranger", {.names = "DNS:ops.example.org", .authority = "foreign"});
  certificates_->Make("late", {.names = "DNS:ops.example.org", .days = -1});
  certificates_->Make("a_server", {.names = "DNS:ops.example.org", .usage = "serverAuth"});
  certificates_->MakeAuthority("self");  // signed by itself
  Start();
  for (const char* client : {"stranger", "late", "a_server", "self"}) {
    EXPECT_EQ(Ping(As(client)).error_code(), grpc::StatusCode::UNAVAILABLE) << client;
  }
  client::ChannelOptions options;
  options.own_connection = true;
  EXPECT_EQ(Ping(client::MakeChannel(server_->address(), options)).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  options.tls.ca = certificates_->File("ca.pem");
  EXPECT_EQ(Ping(client::MakeChannel(server_->address(), options)).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ping(As("ops")).ok());
}

TEST_F(SecuredTest, ACertificateWithoutNamesIsNobodys) {
  certificates_->Make("unnamed", {.names = ""});
  certificates_->Make("numbered", {.names = "IP:10.0.0.3,email:ops@example.org"});
  Start();
  for (const char* client : {"unnamed", "numbered"}) {
    const grpc::Status status = Ping(As(client));
    EXPECT_EQ(ReasonOf(status), "CALLER_UNKNOWN") << client;
    EXPECT_THAT(status.error_message(), HasSubstr("has no URI and no DNS name"));
  }
}

TEST_F(SecuredTest, ClientsConnectToNoServerThatCannotShowItsName) {
  certificates_->MakeAuthority("foreign");
  certificates_->Make("server", {.names = "DNS:elsewhere.example.org"});
  Start();
  const grpc::Status wrong_name = Ping(As("ops"));
  EXPECT_EQ(wrong_name.error_code(), grpc::StatusCode::UNAVAILABLE);
  certificates_->Make("server", {.names = "DNS:localhost"});
  ASSERT_TRUE(Eventually([&] { return Ping(As("ops")).ok(); }));
  EXPECT_EQ(Ping(As("ops", "foreign")).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(SecuredTest, PlansAreOfTheCallersTenant) {
  Start();
  const auto a = v1::Planner::NewStub(As("a")), b = v1::Planner::NewStub(As("b"));
  const v1::GetPlanRequest inlined = InlineRequestFor(ForwardGraph());
  v1::GetPlanRequest bare = RequestFor(ForwardGraph());
  v1::GetPlanResponse response;
  ASSERT_TRUE(a->GetPlan(Soon().get(), inlined, &response).ok());
  // Twice: the second time its bytes are known.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(a->GetPlan(Soon().get(), bare, &response).ok());
    EXPECT_EQ(response.plan().source(), v1::PLAN_SOURCE_HIT);
  }
  bare.set_cached_only(false);
  ASSERT_TRUE(b->GetPlan(Soon().get(), bare, &response).ok());
  EXPECT_TRUE(response.has_graph_required()) << "b was given a's plan";

  const auto admin_of_b = v1::Admin::NewStub(As("b")), ops = v1::Admin::NewStub(As("ops"));
  v1::ListPlansResponse plans;
  ASSERT_TRUE(admin_of_b->ListPlans(Soon().get(), {}, &plans).ok());
  EXPECT_EQ(plans.plans_size(), 0);
  ASSERT_TRUE(ops->ListPlans(Soon().get(), {}, &plans).ok());
  ASSERT_EQ(plans.plans_size(), 1);
  EXPECT_EQ(plans.plans(0).tenant(), "team-a");

  v1::EvictPlansRequest evict;
  evict.mutable_selection()->set_key_sha256(plans.plans(0).key_sha256());
  v1::EvictPlansResponse gone;
  admin_of_b->EvictPlans(Soon().get(), evict, &gone).ok();
  EXPECT_EQ(gone.from_memory(), 0);
  ASSERT_TRUE(a->GetPlan(Soon().get(), bare, &response).ok());
  EXPECT_EQ(response.plan().source(), v1::PLAN_SOURCE_HIT);
}

v1::Job JobOfOneRank() {
  v1::Job job;
  job.set_id("job");
  job.set_generation(0);
  job.set_scope("0/fw");
  job.set_size(1);
  job.add_rank(0);
  return job;
}

TEST_F(SecuredTest, NobodySpeaksForAnotherTenant) {
  Start();
  const auto b = As("b");
  const auto refused = [&](const std::string& method, const google::protobuf::Message& message) {
    const grpc::Status status = Call(b, method, message.SerializeAsString());
    EXPECT_EQ(status.ok() ? "" : ReasonOf(status), "TENANT_DIFFERS") << method;
    EXPECT_THAT(status.error_message(),
                AllOf(HasSubstr("URI:spiffe://example.org/team-b/train belongs to tenant "
                                "\"team-b\""),
                      HasSubstr("\"team-a\"")));
  };
  v1::GetPlanRequest plan = InlineRequestFor(ForwardGraph());
  plan.set_tenant("team-a");
  refused("bucketd.v1.Planner/GetPlan", plan);
  *plan.mutable_job() = JobOfOneRank();
  refused("bucketd.v1.Planner/GetPlan", plan);
  v1::UploadGraphRequest upload;
  *upload.mutable_header() = HeaderFor(ForwardGraph());
  upload.mutable_header()->set_tenant("team-a");
  refused("bucketd.v1.Planner/UploadGraph", upload);
  const auto named = [&](auto message, const std::string& method) {
    message.set_tenant("team-a");
    refused(method, message);
  };
  named(v1::QueryUploadRequest(), "bucketd.v1.Planner/QueryUpload");
  named(v1::ReleaseJobRequest(), "bucketd.v1.Planner/ReleaseJob");
  named(v1::RendezvousRequest(), "bucketd.v1.Agents/Rendezvous");
  named(v1::WatchEpochRequest(), "bucketd.v1.Agents/WatchEpoch");
  named(v1::EndEpochRequest(), "bucketd.v1.Agents/EndEpoch");
  named(v1::ListJobsRequest(), "bucketd.v1.Admin/ListJobs");
  named(v1::PinJobRequest(), "bucketd.v1.Admin/PinJob");
  named(v1::UnpinJobRequest(), "bucketd.v1.Admin/UnpinJob");
  v1::ListPlansRequest list;
  list.mutable_selection()->set_tenant("team-a");
  refused("bucketd.v1.Admin/ListPlans", list);
  v1::EvictPlansRequest evict;
  evict.mutable_selection()->set_tenant("team-a");
  refused("bucketd.v1.Admin/EvictPlans", evict);
}

TEST_F(SecuredTest, GraphsJobsAndAgentsAreOfTheCallersTenant) {
  Start();
  const auto planner_a = v1::Planner::NewStub(As("a"));
  const auto ops = As("ops");
  v1::UploadGraphResponse uploaded;
  const auto context = Soon();
  const auto writer = planner_a->UploadGraph(context.get(), &uploaded);
  v1::UploadGraphRequest message;
  *message.mutable_header() = HeaderFor(ForwardGraph());
  writer->Write(message);
  message.set_chunk(Zstd(ForwardGraph().bytes));
  writer->Write(message);
  writer->WritesDone();
  ASSERT_TRUE(writer->Finish().ok());
  const auto present = [&](const std::shared_ptr<grpc::Channel>& channel, const char* tenant) {
    v1::QueryUploadRequest query;
    query.set_tenant(tenant);
    query.set_graph_digest(DigestBytes(ForwardGraph().digest));
    v1::QueryUploadResponse answer;
    EXPECT_TRUE(v1::Planner::NewStub(channel)->QueryUpload(Soon().get(), query, &answer).ok());
    return answer.present();
  };
  EXPECT_TRUE(present(As("a"), ""));
  EXPECT_TRUE(present(ops, "team-a"));
  EXPECT_FALSE(present(ops, ""));
  EXPECT_FALSE(present(As("b"), ""));

  v1::GetPlanRequest plan = InlineRequestFor(ForwardGraph());
  *plan.mutable_job() = JobOfOneRank();
  v1::GetPlanResponse planned;
  const grpc::Status answered = planner_a->GetPlan(Soon().get(), plan, &planned);
  ASSERT_TRUE(answered.ok()) << answered.error_message();
  v1::ListJobsResponse jobs;
  ASSERT_TRUE(v1::Admin::NewStub(As("b"))->ListJobs(Soon().get(), {}, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
  ASSERT_TRUE(v1::Admin::NewStub(As("a"))->ListJobs(Soon().get(), {}, &jobs).ok());
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_EQ(jobs.jobs(0).tenant(), "team-a");
  v1::ReleaseJobRequest release;
  release.set_job_id("job");
  v1::ReleaseJobResponse released;
  ASSERT_TRUE(v1::Planner::NewStub(As("b"))->ReleaseJob(Soon().get(), release, &released).ok());
  EXPECT_EQ(released.released(), 0);
  ASSERT_TRUE(planner_a->ReleaseJob(Soon().get(), release, &released).ok());
  EXPECT_EQ(released.released(), 1);

  v1::RendezvousRequest meet;
  meet.set_group("dp");
  meet.set_size(1);
  meet.set_endpoint("tcp:127.0.0.1:1");
  v1::RendezvousResponse met;
  ASSERT_TRUE(v1::Agents::NewStub(As("a"))->Rendezvous(Soon().get(), meet, &met).ok());
  v1::EndEpochRequest end;
  end.set_group("dp");
  end.set_epoch(met.epoch());
  v1::EndEpochResponse ended;
  v1::Agents::NewStub(As("b"))->EndEpoch(Soon().get(), end, &ended).ok();
  v1::WatchEpochRequest watch;
  watch.set_group("dp");
  watch.set_epoch(met.epoch());
  v1::WatchEpochResponse fate;
  v1::Agents::NewStub(As("a"))->WatchEpoch(Soon(2).get(), watch, &fate).ok();
  EXPECT_FALSE(fate.over()) << "b ended a's epoch";
}

TEST_F(SecuredTest, ATenantWhoseReportsOfCostsTakeAllPlacesKeepsNoOtherOneOut) {
  struct Report {
    grpc::ClientContext context;
    v1::ReportCostsResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::ReportCostsRequest>> writer;
  };
  options_.costs.max_report_streams = 2;
  options_.upload_stall = std::chrono::minutes(10);
  Client("c", "URI:spiffe://example.org/team-c/train");
  WriteIdentities(Entry("URI:spiffe://example.org/team-c/*", "team-c", "report"));
  Start();
  v1::ReportCostsRequest header;
  header.mutable_header()->set_profile("h100_nvlink");
  header.mutable_header()->set_reporter("host");
  std::array<Report, 3> reports;
  for (size_t i = 0; i < reports.size(); ++i) {
    Report& report = reports[i];
    report.writer = v1::CostProfiles::NewStub(As(i < 2 ? "a" : "c"))
                        ->ReportCosts(&report.context, &report.response);
    ASSERT_TRUE(Eventually([&] {
      return Metric("bucketd_requests_in_flight", "method", "ReportCosts") > static_cast<double>(i);
    }));
  }
  for (const size_t ends : {size_t{2}, size_t{0}}) {
    reports[ends].writer->Write(header);
    reports[ends].writer->WritesDone();
    const grpc::Status status = reports[ends].writer->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  reports[1].writer->Write(header);
  EXPECT_EQ(ReasonOf(reports[1].writer->Finish()), "OVERLOADED") << "the newest of who had most";
  EXPECT_EQ(Metric("bucketd_displaced_total", "what", "report"), 1);
}

TEST_F(SecuredTest, DoesNotStartWithoutWhatItNeedsAndNamesIt) {
  const auto refusal = [this] {
    const auto server = Server::Start(options_, plan_function_);
    return server.ok() ? "" : std::string(server.status().message());
  };
  const ServerOptions good = options_;
  options_.tls.key_file.clear();
  options_.tls.identities_file.clear();
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--tls-key-file: is missing"),
                               HasSubstr("--identities-file: is missing")));
  options_ = good;
  options_.listen = absl::StrCat("unix:", folder_, "/socket");
  EXPECT_THAT(refusal(), HasSubstr("--listen: a unix socket has no TLS"));
  options_ = good;
  options_.tls.client_ca_file = folder_ + "/none.pem";
  EXPECT_THAT(refusal(), HasSubstr("none.pem: no such file"));
  options_ = good;
  options_.tls = {};
  options_.listen = "0.0.0.0:0";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--listen: 0.0.0.0:0 can be reached"),
                               HasSubstr("--tls-certificate-file"), HasSubstr("--insecure")));
  options_.tls = good.tls;
  EXPECT_EQ(refusal(), "");
  options_.http = "0.0.0.0:0";
  EXPECT_THAT(refusal(), HasSubstr("--http: 0.0.0.0:0 can be reached"));
}

TEST_F(SecuredTest, WhoHasNoNameSeesNoTenantsJobsFromElsewhere) {
  const auto status_of = [this](const char* page) {
    const std::string address = server_->http_address();
    httplib::Client client("127.0.0.1", std::stoi(address.substr(address.rfind(':') + 1)));
    const httplib::Result result = client.Get(page);
    return result ? result->status : 0;
  };
  options_.http = "127.0.0.1:0";
  Start();
  EXPECT_EQ(status_of("/statusz"), 200);
  server_.reset();
  options_.http = "0.0.0.0:0";
  options_.insecure = true;
  Start();
  EXPECT_EQ(status_of("/statusz"), 404);
  EXPECT_EQ(status_of("/"), 404);
  EXPECT_EQ(status_of("/metrics"), 200);
  EXPECT_EQ(status_of("/readyz"), 200);
}

// Whoever signs certificates chooses what stands in them.
TEST_F(SecuredTest, OddNamesAreNobodysAndAreShownHarmlessly) {
  const struct {
    const char* names;
    const char* shown;
  } kCases[] = {
      {"DNS:*.example.org", "DNS:*.example.org"},
      {"URI:spiffe://example.org/team-a/", "URI:spiffe://example.org/team-a/"},
      {"URI:spiffe://example.org/team-a/x/y", "team-a/x/y"},
      {"URI:SPIFFE://example.org/team-a/x", "URI:SPIFFE://example.org/team-a/x"},
      {"URI:spiffe://example.org/other/../team-a/x", "other/../team-a/x"},
      {"URI:spiffe://example.org/%74eam-a/x", "%74eam-a/x"},
      {"DNS:ops.example.org.", "DNS:ops.example.org."},
      {"DNS:ops.example.org\\ x", "DNS:ops.example.org"},
      {"URI:x:\x1b[31m\"'<b>", R"(URI:x:\x1b[31m\'<b>)"},
      {"URI:x:\xc3\xa9", R"(URI:x:\xc3\x83)"},
  };
  Start();
  for (const auto& c : kCases) {
    Client("odd", c.names);
    const grpc::Status status = Ping(As("odd"));
    EXPECT_EQ(ReasonOf(status), "CALLER_UNKNOWN") << c.names;
    EXPECT_THAT(status.error_message(), HasSubstr(c.shown)) << c.names;
  }
  std::string many = "DNS:n0.example.org";
  for (int i = 1; i < 200; ++i) absl::StrAppend(&many, ",DNS:n", i, ".example.org");
  Client("odd", many);
  EXPECT_THAT(Ping(As("odd")).error_message(), AllOf(HasSubstr("DNS:n7"), HasSubstr(" and more")));
  Client("odd", absl::StrCat("URI:x:", std::string(20'000, 'y')));
  EXPECT_LT(Ping(As("odd")).error_message().size(), 1000);
  EXPECT_TRUE(Ping(As("ops")).ok());
}

}  // namespace
}  // namespace bucketd
