// What a change of certificates and identities does to a server with mutual TLS, and to calls that
// go on meanwhile.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

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
