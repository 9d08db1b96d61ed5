// A server that accepts tokens: who gets in by one, what it is beside a certificate, and what a
// caller is told whose token is no good.
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "tests/server/secured_fixture.h"
#include "tests/server/tokens.h"

namespace bucketd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SecuredTokenTest : public SecuredTest {
 protected:
  void SetUp() override {
    SecuredTest::SetUp();
    std::ofstream(folder_ + "/ci.pem") << key_.Pem();
    WriteIdentities(absl::StrCat("[[issuer]]\nname = \"ci\"\niss = \"https://ci.example\"\n",
                                 "audience = \"bucketd\"\nkeys_file = \"ci.pem\"\n",
                                 Entry("JWT:ci/team-b/*", "team-b", "plan")));
    options_.tls.accept_tokens = true;
  }

  std::string Claims(const std::string& subject, int64_t seconds = 600) {
    return absl::StrCat(R"({"iss":"https://ci.example","aud":"bucketd","sub":")", subject,
                        R"(","exp":)", time(nullptr) + seconds, "}");
  }
  void WriteToken(const std::string& token) {
    std::ofstream(folder_ + "/token.new") << token << "\n";
    std::filesystem::rename(folder_ + "/token.new", folder_ + "/token");
  }
  // With a token, and with the certificate of that client if it is not "".
  std::shared_ptr<grpc::Channel> WithToken(const std::string& client = "") {
    client::ChannelOptions options;
    options.own_connection = true;
    if (!client.empty()) options.tls = certificates_->Client(client);
    options.tls.ca = certificates_->File("ca.pem");
    options.tls.token = folder_ + "/token";
    return client::MakeChannel(server_->address(), options);
  }
  grpc::Status PingWith(const std::string& authorization, int times = 1) {
    client::ChannelOptions options;
    options.own_connection = true;
    options.tls.ca = certificates_->File("ca.pem");
    const auto channel = client::MakeChannel(server_->address(), options);
    const auto context = Soon();
    for (int i = 0; i < times; ++i) context->AddMetadata("authorization", authorization);
    v1::GetCapabilitiesResponse response;
    return v1::Planner::NewStub(channel)->GetCapabilities(context.get(), {}, &response);
  }

  const Issuing key_{Issuing::Key::kP256};
};

TEST_F(SecuredTokenTest, ATokenGivesTenantAndRoles) {
  options_.tls.client_ca_file.clear();  // nobody has a certificate
  Start();
  WriteToken(key_.Token(Claims("team-b/ci")));
  const auto channel = WithToken();
  v1::GetPlanRequest request = InlineRequestFor(ForwardGraph());
  v1::GetPlanResponse response;
  const grpc::Status planned =
      v1::Planner::NewStub(channel)->GetPlan(Soon().get(), request, &response);
  ASSERT_TRUE(planned.ok()) << planned.error_message();
  request.set_tenant("team-a");
  const grpc::Status other =
      v1::Planner::NewStub(channel)->GetPlan(Soon().get(), request, &response);
  EXPECT_EQ(ReasonOf(other), "TENANT_DIFFERS");
  EXPECT_THAT(other.error_message(), HasSubstr("JWT:ci/team-b/ci belongs to tenant \"team-b\""));
  EXPECT_EQ(ReasonOf(Call(channel, "bucketd.v1.Admin/ListPlans")), "ROLE_MISSING");
}

TEST_F(SecuredTokenTest, TheTokenCountsWhereThereIsACertificateToo) {
  Start();
  EXPECT_TRUE(Ping(As("ops")).ok());
  WriteToken(key_.Token(Claims("team-b/ci")));
  EXPECT_EQ(ReasonOf(Call(WithToken("ops"), "bucketd.v1.Admin/GetStatus")), "ROLE_MISSING");
  WriteToken(key_.Token(Claims("team-b/ci", -120)));
  EXPECT_EQ(ReasonOf(Ping(WithToken("ops"))), "CALLER_UNKNOWN");
}

TEST_F(SecuredTokenTest, WithoutTheOptionTokensAreNotLookedAt) {
  options_.tls.accept_tokens = false;
  Start();
  WriteToken(key_.Token(Claims("team-b/ci")));
  EXPECT_EQ(Ping(WithToken()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Call(WithToken("ops"), "bucketd.v1.Admin/GetStatus").ok());
}

TEST_F(SecuredTokenTest, AForeignCertificateIsNoBetterThanBefore) {
  certificates_->MakeAuthority("foreign");
  certificates_->Make("stranger", {.names = "DNS:ops.example.org", .authority = "foreign"});
  Start();
  WriteToken(key_.Token(Claims("team-b/ci")));
  EXPECT_TRUE(Ping(WithToken()).ok());
  EXPECT_EQ(Ping(WithToken("stranger")).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(SecuredTokenTest, ATokenThatIsReplacedCountsFromTheNextCallOn) {
  Start();
  WriteToken(key_.Token(Claims("nobody/ci")));
  const auto channel = WithToken();
  EXPECT_THAT(Ping(channel).error_message(), HasSubstr("JWT:ci/nobody/ci"));
  WriteToken(key_.Token(Claims("team-b/ci")));
  EXPECT_TRUE(Ping(channel).ok());
  std::filesystem::remove(folder_ + "/token");
  const grpc::Status without = Ping(channel);
  EXPECT_EQ(without.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(without.error_message(), HasSubstr("/token: cannot be read: No such file"));
  WriteToken("two words");
  EXPECT_THAT(Ping(channel).error_message(),
              AllOf(HasSubstr("/token: expected a JSON Web Token"), Not(HasSubstr("words"))));
  WriteToken(std::string(8000, 'x'));
  EXPECT_THAT(Ping(channel).error_message(), HasSubstr("/token: more than 7168 bytes"));
}

TEST_F(SecuredTokenTest, WhatIsNoTokenIsRefusedAndNotRepeated) {
  Start();
  const auto refused = [&](const std::string& authorization, const char* problem, int times = 1) {
    const grpc::Status status = PingWith(authorization, times);
    EXPECT_EQ(ReasonOf(status), "CALLER_UNKNOWN") << authorization.substr(0, 50);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(status.error_message(), HasSubstr(problem));
    EXPECT_THAT(status.error_message(), Not(HasSubstr("secretsecret")));
  };
  refused("Basic b3BzOnNlY3JldA", "which begins with \"Bearer \"");
  refused("Bearer a.b.c", "expected one authorization", 2);
  refused("Bearer secretsecret", "expected a signed JSON Web Token");
  refused("Bearer secretsecret.secretsecret.x", "its header is no JSON object");
  refused("Bearer " + key_.Token(Claims("team-b/ci", -300)), "it expired 30");
  refused("Bearer " + HmacToken(key_.Pem(), Claims("team-b/ci")), "alg \"HS256\"");
  EXPECT_TRUE(PingWith("bearer " + key_.Token(Claims("team-b/ci"))).ok());
  const grpc::Status none = Ping(As("a"));
  EXPECT_TRUE(none.ok()) << none.error_message();
  EXPECT_EQ(Metric("bucketd_identity_refused_calls_total", "why", "unknown"), 6);
}

TEST_F(SecuredTokenTest, LongTokensArriveAndTooLongOnesHarmNobody) {
  Start();
  const auto padded = [&](size_t bytes) {
    std::string claims = Claims("team-b/ci");
    claims.pop_back();
    return key_.Token(absl::StrCat(claims, ",\"pad\":\"", std::string(bytes, 'x'), "\"}"));
  };
  EXPECT_TRUE(PingWith("Bearer " + padded(5000)).ok());
  // gRPC's own bound on metadata.
  EXPECT_EQ(PingWith("Bearer " + padded(20'000)).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // And ours on what it may keep of them: the connection of who sends more ends.
  EXPECT_EQ(PingWith("Bearer " + padded(1 << 20)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ping(As("a")).ok());
}

TEST_F(SecuredTokenTest, IsToldWhatTheServerNeedsBesideTheOption) {
  const auto refusal = [this] {
    const auto server = Server::Start(options_, plan_function_);
    return server.ok() ? "" : std::string(server.status().message());
  };
  WriteIdentities();
  EXPECT_THAT(refusal(), HasSubstr("who.toml: expected an [[issuer]]"));
  options_.tls.certificate_file.clear();
  EXPECT_THAT(refusal(), HasSubstr("--tls-certificate-file: is missing"));
  options_.tls = {};
  options_.tls.accept_tokens = true;
  EXPECT_THAT(refusal(), HasSubstr("--identities-file: is missing"));
}

}  // namespace
}  // namespace bucketd
