// Who is who, without a server: patterns of names, the identities file, roles, files of TLS, and
// files that are replaced.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"

#include "server/base/errors.h"
#include "server/identity/caller.h"
#include "server/identity/identities.h"
#include "server/identity/identity_metrics.h"
#include "server/identity/name_pattern.h"
#include "server/identity/reloaded.h"
#include "server/identity/trust.h"
#include "tests/server/certificates.h"
#include "tests/temp_folder.h"

namespace bucketd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A disk that does not answer holds up whoever reads the files again, and no call.
TEST(ReloadedTest, WhatIsInForceIsThereWhileFilesAreRead) {
  const std::string path = testing::TempDir() + "/reloaded";
  std::ofstream(path) << "one";
  prometheus::Registry registry;
  IdentityMetrics metrics(registry);
  std::promise<void> reads, answers;
  int times = 0;
  Reloaded<int> file(
      "a file", {path},
      [&]() -> absl::StatusOr<int> {
        if (++times == 2) {
          reads.set_value();
          answers.get_future().wait();
        }
        return times;
      },
      metrics.identities);
  ASSERT_TRUE(file.Load().ok());
  std::ofstream(path) << "another";
  std::thread looks([&] { file.Look(); });
  reads.get_future().wait();
  std::future<int> got = std::async(std::launch::async, [&] { return *file.Get(); });
  EXPECT_EQ(got.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  answers.set_value();
  looks.join();
  EXPECT_EQ(got.get(), 1);
  EXPECT_EQ(*file.Get(), 2);
}

TEST(NamePatternTest, StarsStandForOnePart) {
  const struct {
    const char* pattern;
    const char* name;
    bool fits;
  } kCases[] = {
      {"URI:spiffe://a.org/train/*", "URI:spiffe://a.org/train/llama", true},
      {"URI:spiffe://a.org/train/*", "URI:spiffe://a.org/train/", false},
      {"URI:spiffe://a.org/train/*", "URI:spiffe://a.org/train/llama/x", false},
      {"URI:spiffe://a.org/*/rank-*", "URI:spiffe://a.org/train/rank-3", true},
      {"URI:spiffe://a.org/train", "URI:spiffe://A.org/train", false},
      {"DNS:*.train.example.org", "DNS:rank-3.train.example.org", true},
      {"DNS:*.train.example.org", "DNS:RANK-3.Train.example.ORG", true},
      {"DNS:*.train.example.org", "DNS:a.b.train.example.org", false},
      {"DNS:*.train.example.org", "DNS:train.example.org", false},
      {"DNS:rank-*.train.example.org", "DNS:rank-.train.example.org", false},
      {"DNS:host.example.org", "URI:host.example.org", false},
  };
  for (const auto& c : kCases) {
    const absl::StatusOr<NamePattern> pattern = NamePattern::Parse(c.pattern);
    ASSERT_TRUE(pattern.ok()) << pattern.status();
    EXPECT_EQ(pattern->Fits(c.name), c.fits) << c.pattern << " " << c.name;
  }
}

// Against the regular expression that says the same.
TEST(NamePatternTest, FitsWhatItsExpressionFits) {
  std::mt19937 random(7);
  const auto text = [&random](absl::string_view letters) {
    std::string out;
    for (size_t n = random() % 7; n > 0; --n) out += letters[random() % letters.size()];
    return out;
  };
  int fitted = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string free = text("ab*/");
    const absl::StatusOr<NamePattern> pattern = NamePattern::Parse("URI:x:/" + free);
    if (!pattern.ok()) continue;
    const std::regex expression(std::regex_replace(free, std::regex("\\*"), "[^/]+"));
    const std::string name = text("ab/");
    EXPECT_EQ(pattern->Fits("URI:x:/" + name), std::regex_match(name, expression))
        << free << " " << name;
    fitted += pattern->Fits("URI:x:/" + name) ? 1 : 0;
  }
  EXPECT_GT(fitted, 100);
}

TEST(NamePatternTest, RefusesPatternsThatLeaveOpenWhoVouches) {
  for (const char* text : {"", "host", "URI:", "DNS:", "EMAIL:a@b", "URI:spiffe://*/train",
                           "URI:spiffe://a*", "URI:*", "DNS:*", "DNS:*.org", "DNS:a.*.org",
                           "DNS:a.org*", "URI:spiffe://a/b c", "URI:x:**", "JWT:a", "JWT:*/x"}) {
    EXPECT_FALSE(NamePattern::Parse(text).ok()) << text;
  }
  EXPECT_FALSE(NamePattern::Parse("URI:x:" + std::string(2048, 'a')).ok());
}

constexpr char kWho[] = R"([[identity]]
names = ["DNS:ops.example.org"]
tenant = "*"
roles = ["admin", "promote"]

[[identity]]
names = ["URI:spiffe://a.org/train/*", "DNS:x.example.org"]
tenant = "team-a"
roles = ["plan"]

[[identity]]
names = ["URI:spiffe://a.org/train/llama", "URI:spiffe://a.org/*/gpt"]
tenant = "team-b"
roles = ["report"]
)";

TEST(IdentitiesTest, TheFirstEntryThatOneOfTheNamesFitsCounts) {
  const absl::StatusOr<Identities> who = Identities::Parse(kWho, "who.toml");
  ASSERT_TRUE(who.ok()) << who.status();
  const auto tenant = [&](std::vector<std::string> names) {
    const Identity* found = who->Find(names);
    return found == nullptr ? "nobody" : found->tenant;
  };
  EXPECT_EQ(tenant({"URI:spiffe://a.org/train/llama"}), "team-a");  // fits the third exactly, too
  EXPECT_EQ(tenant({"URI:spiffe://a.org/other/gpt"}), "team-b");
  EXPECT_EQ(tenant({"URI:spiffe://a.org/other/gpt", "DNS:OPS.example.org"}), "*");
  EXPECT_EQ(tenant({"URI:spiffe://b.org/train/llama"}), "nobody");
  EXPECT_EQ(tenant({}), "nobody");
  std::string fits;
  ASSERT_NE(who->Find({"DNS:q", "URI:spiffe://a.org/train/z"}, &fits), nullptr);
  EXPECT_EQ(fits, "URI:spiffe://a.org/train/z");
}

TEST(IdentitiesTest, EveryProblemIsNamedWithItsLine) {
  const absl::StatusOr<Identities> who = Identities::Parse(R"(names = 3
[[identity]]
names = ["DNS:*"]
tenant = "a b"
roles = ["plna"]
[[identity]]
names = []
rolls = ["plan"]
tenant = 7
roles = ["plan"]
[[identity]]
names = ["DNS:x.example.org", "DNS:X.example.org"]
tenant = ""
roles = "plan"
)",
                                                           "w.toml");
  ASSERT_FALSE(who.ok());
  for (const char* problem :
       {"w.toml:1: there is no key \"names\"", "w.toml:3: \"DNS:*\": a * may not",
        "w.toml:4: ", "w.toml:5: there is no role \"plna\"; did you mean plan?",
        "w.toml:7: expected names = ", "w.toml:8: there is no key \"rolls\"; did you mean roles?",
        "w.toml:9: expected tenant", "w.toml:12: DNS:x.example.org stands in line 12 already",
        "w.toml:14: expected roles"}) {
    EXPECT_THAT(std::string(who.status().message()), HasSubstr(problem));
  }
  EXPECT_FALSE(Identities::Parse("", "w.toml").ok());
  EXPECT_FALSE(Identities::Parse("identity = [1]", "w.toml").ok());
  EXPECT_THAT(std::string(Identities::Parse("[[identity]]\nnames =", "w.toml").status().message()),
              HasSubstr("w.toml:2"));
}

TEST(IdentitiesTest, NamesThatAreTriedOneByOneAreBounded) {
  std::string names;
  for (size_t i = 0; i <= Identities::kMaxPatterns; ++i) {
    absl::StrAppend(&names, "\"URI:x:", i, "/*\",");
  }
  const std::string text =
      absl::StrCat("[[identity]]\nnames = [", names, "]\ntenant = \"\"\nroles = [\"plan\"]\n");
  EXPECT_THAT(std::string(Identities::Parse(text, "w.toml").status().message()),
              HasSubstr("more than 256 names with a *"));
}

// Some of them ended the process: the library asserted what was not so.
TEST(IdentitiesTest, MistakesOfAnyKindAreErrors) {
  for (const char* text : {"[=]", "[.a]", "[[[", "[[[a]]]", "[", "[[", "[a", "=", "a.=1", "a={=",
                           "a = [", "\xff\xfe", "a = \"\\u0000\"", "[[identity]]\nnames = [["}) {
    const absl::StatusOr<Identities> who = Identities::Parse(text, "w.toml");
    EXPECT_THAT(std::string(who.status().message()), HasSubstr("w.toml:")) << text;
  }
}

TEST(IdentitiesTest, HugeFilesAreTakenQuicklyOrRefused) {
  const auto of_names = [](size_t count) {
    std::string names;
    for (size_t i = 0; i < count; ++i) absl::StrAppend(&names, "\"DNS:n", i, ".example.org\",\n");
    return absl::StrCat("[[identity]]\nnames = [", names, "]\ntenant = \"\"\nroles = [\"plan\"]\n");
  };
  const absl::StatusOr<Identities> most = Identities::Parse(of_names(20'000), "w.toml");
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_NE(most->Find({"DNS:n19999.example.org"}), nullptr);
  EXPECT_THAT(std::string(Identities::Parse(of_names(20'001), "w.toml").status().message()),
              HasSubstr("w.toml:20002: more than 20000 names"));
  EXPECT_THAT(
      std::string(Identities::Parse(std::string(100'000, '['), "w.toml").status().message()),
      HasSubstr("w.toml:1: "));
  const std::string path = (std::filesystem::temp_directory_path() / "bucketd-huge.toml").string();
  std::ofstream(path) << std::string((4 << 20) + 1, '\n');
  EXPECT_THAT(std::string(Identities::Read(path).status().message()),
              HasSubstr("bucketd-huge.toml: more than 4194304 bytes"));
  std::filesystem::remove(path);
}

TEST(CallerTest, SpeaksForItsTenantOnly) {
  const Caller of_a{"DNS:a", "a", false, {CallerRole::kPlan}};
  EXPECT_EQ(*of_a.TenantFor(""), "a");
  EXPECT_EQ(*of_a.TenantFor("a"), "a");
  EXPECT_EQ(ReasonOf(of_a.TenantFor("b").status()), "TENANT_DIFFERS");
  std::string accents = "a";
  for (int i = 0; i < 100; ++i) accents += "\xc3\xa9";
  const absl::Status cut = of_a.TenantFor(accents).status();
  EXPECT_EQ(ReasonOf(ParseRpcStatus(SerializeRpcStatus(cut))), "TENANT_DIFFERS");
  const Caller of_default{"DNS:d", "", false, {CallerRole::kPlan}};
  EXPECT_EQ(*of_default.TenantFor(""), "");
  EXPECT_EQ(ReasonOf(of_default.TenantFor("a").status()), "TENANT_DIFFERS");
  const Caller of_any{"DNS:o", "*", true, {}};
  EXPECT_EQ(*of_any.TenantFor(""), "");
  EXPECT_EQ(*of_any.TenantFor("b"), "b");
  // None is the beginning of another.
  EXPECT_EQ(of_a.KeyPrefix(), std::string("a\0", 2));
  EXPECT_EQ(of_default.KeyPrefix(), std::string("\0", 1));
  EXPECT_EQ(of_any.KeyPrefix(), std::string("*\0", 2));
  EXPECT_EQ(Caller().KeyPrefix(), "");
}

TEST(CallerTest, IsToldWhichRoleIsMissing) {
  const Caller caller{"DNS:a", "a", false, {CallerRole::kReport}};
  const absl::Status refused = CheckRole(caller, Method::kGetPlan, "/etc/who.toml");
  EXPECT_EQ(ReasonOf(refused), "ROLE_MISSING");
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("GetPlan wants the role plan"), HasSubstr("DNS:a has report"),
                    HasSubstr("/etc/who.toml")));
  EXPECT_TRUE(CheckRole(caller, Method::kGetProfile, "").ok());
  EXPECT_TRUE(CheckRole(caller, Method::kGetCapabilities, "").ok());
}

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    certificates_.emplace(folder_);
    certificates_->MakeAuthority("ca");
    certificates_->Make("server", {.names = "DNS:localhost"});
    Write("who.toml", kWho);
  }

  void Write(const std::string& file, const std::string& text) {
    std::ofstream(folder_ + "/" + file) << text;
  }
  std::string Text(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + file).rdbuf();
    return text.str();
  }
  TlsPaths Paths() {
    return {certificates_->File("server.pem"), certificates_->File("server.key"),
            certificates_->File("ca.pem")};
  }
  std::string Refusal() { return std::string(ReadTlsFiles(Paths()).status().message()); }

  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
  std::optional<Certificates> certificates_;
  prometheus::Registry registry_;
  IdentityMetrics metrics_{registry_};
};

TEST_F(FilesTest, AreTakenWhereTheyFitEachOther) {
  const absl::StatusOr<TlsFiles> files = ReadTlsFiles(Paths());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_NEAR(static_cast<double>(files->expires_unix_s),
              static_cast<double>(time(nullptr)) + 172'800, 60);
}

TEST_F(FilesTest, ThatAreNoGoodAreNamedWithWhatIsWrong) {
  certificates_->Make("other", {.names = "DNS:localhost"});
  certificates_->Make("old", {.names = "DNS:localhost", .days = -1});
  const std::string certificate = Text("server.pem"), key = Text("server.key"), ca = Text("ca.pem");
  const struct {
    const char* file;
    std::string text;
    const char* problem;
  } kCases[] = {
      {"server.pem", "", "server.pem: expected a certificate in PEM"},
      {"server.pem", key, "server.pem: expected a certificate in PEM"},
      {"server.pem", Text("old.pem"), "server.pem: the certificate has expired"},
      {"server.pem", certificate.substr(0, certificate.size() / 2), "server.pem: "},
      {"server.pem", Text("other.pem"), "server.key: the key does not belong to the certificate"},
      {"server.key", "no key", "server.key: expected a private key in PEM, not encrypted"},
      {"server.key", key.substr(0, key.size() / 2), "server.key: expected a private key"},
      {"ca.pem", "", "ca.pem: expected a certificate in PEM"},
      // The first is whole.
      {"ca.pem", ca + ca.substr(0, ca.size() / 2), "ca.pem: certificate 2 is damaged"},
      {"ca.pem", std::string(2 << 20, 'x'), "ca.pem: more than 1048576 bytes"},
  };
  for (const auto& c : kCases) {
    const std::string before = Text(c.file);
    Write(c.file, c.text);
    EXPECT_THAT(Refusal(), HasSubstr(c.problem)) << c.text.substr(0, 40);
    Write(c.file, before);
  }
  ASSERT_EQ(Refusal(), "");
  std::filesystem::remove(folder_ + "/ca.pem");
  EXPECT_THAT(Refusal(), HasSubstr("ca.pem: no such file"));
  std::filesystem::create_directory(folder_ + "/ca.pem");
  EXPECT_THAT(Refusal(), HasSubstr("ca.pem: expected a file"));
}

TEST_F(FilesTest, StayInForceUntilWhatReplacesThemIsWhole) {
  Trust trust({Paths(), folder_ + "/who.toml"}, metrics_);
  ASSERT_TRUE(trust.Load().ok());
  EXPECT_GT(metrics_.certificate_expires.Value(), 0);
  const std::shared_ptr<const TlsFiles> first = trust.files();
  trust.Look();
  EXPECT_EQ(trust.files(), first);

  certificates_->Make("next", {.names = "DNS:localhost", .days = 9});
  std::filesystem::rename(folder_ + "/next.key", folder_ + "/server.key");
  trust.Look();
  trust.Look();  // says and counts it once
  EXPECT_EQ(trust.files(), first);
  EXPECT_EQ(metrics_.certificates.refused.Value(), 1);
  const double expired = metrics_.certificate_expires.Value();
  std::filesystem::rename(folder_ + "/next.pem", folder_ + "/server.pem");
  trust.Look();
  EXPECT_NE(trust.files(), first);
  EXPECT_EQ(metrics_.certificates.taken.Value(), 1);
  EXPECT_NEAR(metrics_.certificate_expires.Value() - expired, 7 * 86'400, 60);

  const std::shared_ptr<const Identities> who = trust.identities();
  Write("who.toml", "[[identity]]\n");
  trust.Look();
  EXPECT_EQ(trust.identities(), who);
  EXPECT_EQ(metrics_.identities.refused.Value(), 1);
  Write("who.toml", "[[identity]]\nnames = [\"DNS:a.b.c\"]\ntenant = \"\"\nroles = [\"plan\"]\n");
  trust.Look();
  EXPECT_EQ(trust.identities()->size(), 1);
}

}  // namespace
}  // namespace bucketd
