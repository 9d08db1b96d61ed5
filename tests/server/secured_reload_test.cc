// What a change of certificates and identities does to a server with mutual TLS, and to calls that
// go on meanwhile.
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/planner_client.h"
#include "grpcpp/security/auth_context.h"

#include "tests/server/secured_fixture.h"

namespace bucketd {
namespace {

// The certificate that the server showed on the connection of `context`.
std::string ShownIn(const grpc::ClientContext& context) {
  const auto pem = context.auth_context()->FindPropertyValues("x509_pem_cert");
  return pem.empty() ? "" : std::string(pem[0].data(), pem[0].size());
}

TEST_F(SecuredTest, CertificatesAreReplacedWhileCallsGoOnAndNoneFails) {
  options_.tls.connection_age = std::chrono::seconds(1);
  Start();
  std::atomic<bool> over{false};
  std::atomic<int> calls{0}, failed{0};
  std::mutex mutex;
  std::set<std::string> shown;
  const auto call = [&](const std::shared_ptr<grpc::Channel>& channel) {
    v1::GetCapabilitiesResponse response;
    const auto context = Soon();
    const grpc::Status status =
        v1::Planner::NewStub(channel)->GetCapabilities(context.get(), {}, &response);
    ++calls;
    if (status.ok()) {
      const std::lock_guard lock(mutex);
      shown.insert(ShownIn(*context));
    } else {
      ++failed;
      ADD_FAILURE() << status.error_message();
    }
  };
  std::vector<std::thread> callers;
  callers.emplace_back([&] {  // on one channel, which lives through all of it
    const auto channel = As("a");
    while (!over) call(channel);
  });
  callers.emplace_back([&] {  // a connection for each call
    while (!over) call(As("b"));
  });
  const auto seen = [&] {
    const std::lock_guard lock(mutex);
    return shown.size();
  };
  for (int i = 1; i <= 3; ++i) {
    certificates_->Make("server", {.names = "DNS:localhost"});
    EXPECT_TRUE(Eventually([&] {
      return Metric("bucketd_identity_reloads_total", "result", "taken") >= i && seen() > size_t(i);
    }));
  }
  over = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failed, 0) << "of " << calls;
  EXPECT_GT(calls, 100);
}

TEST_F(SecuredTest, AClientsCertificateIsReplacedWhileItAsksAndNoneOfItsCallsFails) {
  options_.tls.connection_age = std::chrono::seconds(1);
  Start();
  const v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
  client::PlanQuery query;
  query.digest = *DigestFromBytes(request.graph_digest());
  query.mesh = request.mesh();
  query.options = request.options();
  query.graph = [] { return ForwardGraph().bytes; };
  client::ClientOptions options;
  options.own_connection = true;
  options.tls = certificates_->Client("a");
  std::atomic<bool> over{false};
  std::atomic<int> calls{0}, failed{0};
  const auto ask = [&](client::PlannerClient& planner) {
    const absl::Status status = planner.GetPlan(query).status();
    ++calls;
    if (status.ok()) return;
    ++failed;
    ADD_FAILURE() << status;
  };
  client::PlannerClient lasting(server_->address(), options);
  std::array<std::thread, 3> callers;
  for (size_t i = 0; i < 2; ++i) {
    callers[i] = std::thread([&] {  // which share a client
      while (!over) ask(lasting);
    });
  }
  callers[2] = std::thread([&] {
    while (!over) {
      client::PlannerClient fresh(server_->address(), options);
      ask(fresh);
    }
  });
  const auto operators = v1::Admin::NewStub(As("ops"));
  const auto tenants = [&] {
    v1::ListPlansResponse plans;
    operators->ListPlans(Soon().get(), {}, &plans);
    std::set<std::string> found;
    for (const v1::PlanInfo& plan : plans.plans()) found.insert(plan.tenant());
    return found;
  };
  EXPECT_TRUE(Eventually([&] { return tenants() == std::set<std::string>{"team-a"}; }));
  Client("a", "URI:spiffe://example.org/team-b/train");
  // Who it is now is seen in whose plans there are; and nobody needs the old one any more.
  EXPECT_TRUE(Eventually([&] { return tenants().count("team-b") > 0; }));
  const int before = calls;
  EXPECT_TRUE(Eventually([&] { return calls > before + 100; }));
  over = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failed, 0) << "of " << calls;
  const absl::StatusOr<client::PlanReply> theirs = lasting.GetPlan(query);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  std::ofstream(folder_ + "/who.new")
      << Entry("URI:spiffe://example.org/team-b/*", "team-b", "plan")
      << Entry("DNS:ops.example.org", "*", "admin");
  std::filesystem::rename(folder_ + "/who.new", folder_ + "/who.toml");
  EXPECT_TRUE(
      Eventually([&] { return Metric("bucketd_identity_reloads_total", "result", "taken") >= 1; }));
  // Soon at the latest: it looks at its files every five seconds, and no connection lasts longer
  // than one.
  EXPECT_TRUE(Eventually([&] { return lasting.GetPlan(query).ok(); }))
      << "the old name is not known any more";
}

TEST_F(SecuredTest, AConnectionGrowsNoOlderThanItMay) {
  options_.tls.connection_age = std::chrono::seconds(1);
  Start();
  const auto channel = As("a");
  ASSERT_TRUE(Ping(channel).ok());
  // What is connected goes on, but not for ever.
  const std::string authorities = certificates_->File("clients.pem");
  certificates_->MakeAuthority("ca2");
  std::filesystem::rename(certificates_->File("ca2.pem"), authorities);
  EXPECT_TRUE(Eventually([&] { return !Ping(channel).ok(); }));
  std::filesystem::copy_file(certificates_->File("ca.pem"), authorities,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(Eventually([&] { return Ping(channel).ok(); }));
}

TEST_F(SecuredTest, WhoWasTakenOutOfTheFileIsRefusedAtItsNextCall) {
  Start();
  const auto channel = As("a");
  ASSERT_TRUE(Ping(channel).ok());
  std::ofstream(folder_ + "/who.new") << Entry("DNS:ops.example.org", "*", "admin");
  std::filesystem::rename(folder_ + "/who.new", folder_ + "/who.toml");
  EXPECT_TRUE(Eventually([&] { return !Ping(channel).ok(); }));
  EXPECT_EQ(ReasonOf(Ping(channel)), "CALLER_UNKNOWN");
  WriteIdentities();
  EXPECT_TRUE(Eventually([&] { return Ping(channel).ok(); }));
}

TEST_F(SecuredTest, FilesThatAreNoGoodChangeNothingButTheCount) {
  Start();
  std::ofstream(folder_ + "/server.key") << "no key";
  std::ofstream(folder_ + "/who.toml") << "[[identity]]\nnames = 3\n";
  ASSERT_TRUE(Eventually(
      [&] { return Metric("bucketd_identity_reloads_total", "result", "refused") == 2; }));
  EXPECT_TRUE(Ping(As("a")).ok());
  EXPECT_GT(Metric("bucketd_certificate_expires_seconds"), static_cast<double>(time(nullptr)));
}

}  // namespace
}  // namespace bucketd
