// Tokens without a server: which are taken, which are refused, and what is said of them. Issuers'
// keys and the part of the identities file that names them.
#include "server/identity/token.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"

#include "server/identity/identities.h"
#include "server/identity/public_key.h"
#include "server/identity/token_memory.h"
#include "server/identity/trust.h"
#include "tests/server/certificates.h"
#include "tests/server/tokens.h"
#include "tests/temp_folder.h"

namespace bucketd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNow = 1'800'000'000;
constexpr char kGood[] =
    R"({"iss":"https://ci.example","aud":"bucketd","sub":"repo:org/llama","exp":1800000600})";

std::string With(const char* what, const char* instead) {
  return absl::StrReplaceAll(kGood, {{what, instead}});
}

class TokenTest : public ::testing::Test {
 protected:
  void SetUp() override { Write("keys", rsa_.Pem()); }

  void Write(const std::string& file, const std::string& text) {
    std::ofstream(folder_ + "/new") << text;
    std::filesystem::rename(folder_ + "/new", folder_ + "/" + file);
  }
  static std::string Entries(const std::string& more = "") {
    return absl::StrCat(R"([[issuer]]
name = "ci"
iss = "https://ci.example"
audience = "bucketd"
keys_file = "keys"
)",
                        more, R"([[identity]]
names = ["JWT:ci/repo:org/*"]
tenant = "team-a"
roles = ["plan"]
)");
  }
  absl::StatusOr<Identities> Parse(const std::string& text) {
    return Identities::Parse(text, folder_ + "/who.toml");
  }
  std::string NameOf(const std::string& token, const std::string& more = "") {
    const absl::StatusOr<Identities> who = Parse(Entries(more));
    EXPECT_TRUE(who.ok()) << who.status();
    const absl::StatusOr<Token> read = ReadToken(token, who->issuers());
    if (!read.ok()) return std::string(read.status().message());
    const absl::Status current = CheckIsCurrent(*read, kNow);
    return current.ok() ? read->name : std::string(current.message());
  }
  std::string KeysRefusal(const std::string& text) {
    Write("keys", text);
    return std::string(ReadPublicKeys(folder_ + "/keys").status().message());
  }

  const Issuing rsa_{Issuing::Key::kRsa};
  const Issuing p256_{Issuing::Key::kP256};
  const Issuing ed_{Issuing::Key::kEd25519};
  const TempFolder temp_;
  const std::string& folder_ = temp_.path();
};

TEST_F(TokenTest, OfEachKindOfKeyInEachKindOfFileGivesItsSubject) {
  for (const Issuing* key : {&rsa_, &p256_, &ed_}) {
    Write("keys", key->Pem());
    EXPECT_EQ(NameOf(key->Token(kGood)), "JWT:ci/repo:org/llama");
    Write("keys", Issuing::Set(key->Jwk(R"(,"use":"sig")")));
    EXPECT_EQ(NameOf(key->Token(kGood)), "JWT:ci/repo:org/llama");
  }
  Write("keys", rsa_.Pem() + p256_.Pem() + ed_.Pem());
  for (const Issuing* key : {&rsa_, &p256_, &ed_}) {
    EXPECT_EQ(NameOf(key->Token(kGood, R"(,"kid":"whatever")")), "JWT:ci/repo:org/llama");
  }
}

TEST_F(TokenTest, AnotherClaimMayBeTheName) {
  const std::string token = rsa_.Token(With("\"sub\"", "\"sub\":\"x\",\"workload\""));
  EXPECT_EQ(NameOf(token), "JWT:ci/x");
  EXPECT_EQ(NameOf(token, "claim = \"workload\"\n"), "JWT:ci/repo:org/llama");
  EXPECT_THAT(NameOf(token, "claim = \"email\"\n"), HasSubstr("its claim \"email\" is no text"));
}

TEST_F(TokenTest, IsRefusedForWhatItClaims) {
  const std::string long_subject = absl::StrCat("\"sub\":\"", std::string(1025, 'x'), "\"");
  const struct {
    std::string claims;
    const char* problem;
  } kCases[] = {
      {With("ci.example", "ci.example/"),
       "its issuer (iss) is \"https://ci.example/\", whom nobody"},
      {With("\"iss\"", "\"is\""), "its issuer (iss) is \"\""},
      {With("\"https://ci.example\"", "[\"https://ci.example\"]"), "its issuer (iss) is \"\""},
      {With("\"bucketd\"", "\"other\""), "it is not meant for \"bucketd\""},
      {With("\"bucketd\"", "[\"other\"]"), "it is not meant for \"bucketd\""},
      {With("\"aud\"", "\"au\""), "it is not meant for \"bucketd\""},
      {With("\"bucketd\"", "{\"bucketd\":1}"), "it is not meant for \"bucketd\""},
      {With("\"exp\"", "\"ex\""), "it has no end"},
      {With("1800000600", "\"1800000600\""), "it has no end"},
      {With("1800000600", "1e300"), "it has no end"},
      {With("1800000600", "-1"), "it has no end"},
      {With("1800000600", "1e999"), "its body is no JSON object"},
      {With("1800000600", "1799999940"), "it expired 60 s ago"},
      {With("\"exp\"", "\"nbf\":1800000061,\"exp\""), "it is valid only in 61 s"},
      {With("\"exp\"", "\"nbf\":\"soon\",\"exp\""), "its nbf is no time"},
      {With("\"repo:org/llama\"", "7"), "its claim \"sub\" is no text"},
      {With("\"repo:org/llama\"", "\"\""), "its claim \"sub\" is no text"},
      {With("\"sub\":\"repo:org/llama\"", long_subject.c_str()), "its claim \"sub\" is no text"},
      {"[1]", "its body is no JSON object"},
      {"{", "its body is no JSON object"},
      {std::string(3000, '['), "its body is no JSON object"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(NameOf(rsa_.Token(c.claims)), HasSubstr(c.problem)) << c.claims.substr(0, 200);
  }
  // The leeway, from both sides.
  EXPECT_EQ(NameOf(rsa_.Token(With("1800000600", "1799999941"))), "JWT:ci/repo:org/llama");
  EXPECT_EQ(NameOf(rsa_.Token(With("\"exp\"", "\"nbf\":1800000060,\"exp\""))),
            "JWT:ci/repo:org/llama");
  EXPECT_EQ(NameOf(rsa_.Token(With("\"bucketd\"", "[1,\"x\",\"bucketd\"]"))),
            "JWT:ci/repo:org/llama");
}

TEST_F(TokenTest, ChoosesNeitherItsAlgorithmNorWhereKeysComeFrom) {
  const Issuing stranger(Issuing::Key::kRsa);
  const std::string of_ours = rsa_.Token(kGood);
  const std::vector<std::string> parts = absl::StrSplit(of_ours, '.');
  const auto headed = [&](const char* header) { return rsa_.TokenWithHeader(header, kGood); };
  const std::string jwk = absl::StrCat(R"({"alg":"RS256","jwk":)", stranger.Jwk(), "}");
  const struct {
    std::string token;
    const char* problem;
  } kCases[] = {
      // The public key as a secret, which everybody has.
      {HmacToken(rsa_.Pem(), kGood), "its header says alg \"HS256\"; issuer ci has no such key"},
      {absl::StrCat(Base64Url(R"({"alg":"none"})"), ".", parts[1], "."), "alg \"none\"; issuer ci"},
      {headed(R"({"alg":"None"})"), "alg \"None\""},
      {headed(R"({"alg":"rs256"})"), "alg \"rs256\""},
      {headed(R"({"alg":"RS512"})"), "alg \"RS512\""},
      {headed(R"({"alg":["RS256"]})"), "alg \"\""},
      {headed(R"({"typ":"JWT"})"), "alg \"\""},
      {headed(R"({"alg":"ES256"})"), "alg \"ES256\""},
      {headed(R"({"alg":"RS256","crit":["exp"]})"), "wants an extension (crit)"},
      {stranger.TokenWithHeader(jwk, kGood), "its signature is of no key of issuer ci"},
      {stranger.TokenWithHeader(R"({"alg":"RS256","jku":"file:///dev/zero","x5u":"/dev/zero"})",
                                kGood),
       "its signature is of no key of issuer ci"},
      {stranger.Token(kGood), "its signature is of no key of issuer ci"},
      {absl::StrCat(parts[0], ".", parts[1], "."), "its signature is of no key"},
      {absl::StrCat(parts[0], ".", parts[1], ".", parts[2], "="), "its signature is of no key"},
      {absl::StrCat(parts[0], ".", Base64Url(With("llama", "other")), ".", parts[2]),
       "its signature is of no key"},
      {absl::StrCat(parts[0], ".", parts[1]), "expected a signed JSON Web Token"},
      {of_ours + ".x.y", "expected a signed JSON Web Token"},  // as an encrypted one has
      {"", "expected a signed JSON Web Token"},
      {"..", "its header is no JSON object"},
      {absl::StrCat("!", of_ours), "its header is no JSON object"},
      {std::string(1 << 20, 'x'), "it has 1048576 bytes; 7168 are the most"},
  };
  for (const auto& c : kCases) EXPECT_THAT(NameOf(c.token), HasSubstr(c.problem));
  ASSERT_EQ(NameOf(of_ours), "JWT:ci/repo:org/llama");
}

TEST_F(TokenTest, NamesAKeyByItsIdAndNoFileWithIt) {
  const Issuing other(Issuing::Key::kP256);
  Write("keys", Issuing::Set(absl::StrCat(p256_.Jwk(R"(,"kid":"a","alg":"ES256")"), ",",
                                          other.Jwk(R"(,"kid":"b")"))));
  EXPECT_EQ(NameOf(p256_.Token(kGood, R"(,"kid":"a")")), "JWT:ci/repo:org/llama");
  EXPECT_EQ(NameOf(other.Token(kGood)), "JWT:ci/repo:org/llama");
  EXPECT_THAT(NameOf(p256_.Token(kGood, R"(,"kid":"b")")), HasSubstr("of no key of issuer ci"));
  for (const char* id : {"../../../dev/zero", "/etc/passwd", "a' OR 1=1", "a\\u0000"}) {
    const std::string header = absl::StrCat(",\"kid\":\"", id, "\"");
    EXPECT_THAT(NameOf(p256_.Token(kGood, header)), HasSubstr("issuer ci has no such key"));
  }
  // Without one every key is tried, but not any number of them.
  std::string keys = p256_.Jwk();
  for (int i = 0; i < 8; ++i) absl::StrAppend(&keys, ",", other.Jwk());
  Write("keys", Issuing::Set(keys));
  EXPECT_THAT(NameOf(p256_.Token(kGood)), HasSubstr("issuer ci has 9 keys for ES256"));
}

TEST_F(TokenTest, WithManyClaimsIsTakenIfItIsNotTooLong) {
  const auto many = [](int count) {
    std::string claims = With("\"exp\"", "\"z\":0,\"exp\"");
    claims.pop_back();
    for (int i = 0; i < count; ++i) absl::StrAppend(&claims, ",\"", i, "\":1");
    return claims + "}";
  };
  EXPECT_EQ(NameOf(rsa_.Token(many(500))), "JWT:ci/repo:org/llama");
  EXPECT_THAT(NameOf(rsa_.Token(many(10'000))), HasSubstr("7168 are the most"));
}

TEST_F(TokenTest, EveryBitOfItCounts) {
  for (const Issuing* key : {&rsa_, &p256_, &ed_}) {
    Write("keys", key->Pem());
    const std::string token = key->Token(kGood);
    // The last character of each part may hold bits that stand for nothing.
    for (size_t i = 0; i < token.size(); i += 3) {
      if (token[i] == '.' || i + 1 == token.size() || token[i + 1] == '.') continue;
      std::string changed = token;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      EXPECT_NE(NameOf(changed), "JWT:ci/repo:org/llama") << i;
    }
  }
}

TEST_F(TokenTest, KeysThatAreNoGoodAreNamedWithWhatIsWrong) {
  const Issuing short_rsa(Issuing::Key::kShortRsa), p384(Issuing::Key::kP384);
  const std::string pem = p256_.Pem(), jwk = p256_.Jwk();
  std::string too_many;
  for (int i = 0; i < 65; ++i) absl::StrAppend(&too_many, i == 0 ? "" : ",", jwk);
  const struct {
    std::string text;
    const char* problem;
  } kCases[] = {
      {"", "keys: expected public keys in PEM"},
      {rsa_.PrivatePem(), "keys: holds a private key"},
      {pem + rsa_.PrivatePem(), "keys: holds a private key"},
      {pem + pem.substr(0, pem.size() / 2), "keys: key 2: expected a public key, whole and in PEM"},
      {short_rsa.Pem(), "keys: key 1: an RSA key of 1024 bits; expected 2048 to 8192"},
      {pem + p384.Pem(), "keys: key 2: expected a key of RSA, of the curve P-256 or of Ed25519"},
      {"{", "keys: expected a JSON Web Key Set"},
      {"{\"keys\":1}", "keys: expected a JSON Web Key Set"},
      {Issuing::Set("1"), "keys: key 1: expected an object"},
      {Issuing::Set(""), "keys: holds no key for RS256, ES256 or EdDSA"},
      {Issuing::Set(p384.Jwk()), "keys: holds no key for RS256"},
      {Issuing::Set(rsa_.Jwk(R"(,"use":"enc")")), "keys: holds no key for RS256"},
      {Issuing::Set(rsa_.Jwk(R"(,"alg":"PS256")")), "keys: holds no key for RS256"},
      {Issuing::Set(R"({"kty":"oct","k":"c2VjcmV0"})"), "keys: key 1: it is private or shared"},
      {Issuing::Set(jwk + "," + rsa_.Jwk(R"(,"d":"AQAB")")),
       "keys: key 2: it is private or shared"},
      {Issuing::Set(short_rsa.Jwk()), "keys: key 1: an RSA key of 1024 bits"},
      {Issuing::Set(R"({"kty":"RSA","e":"AQAB"})"), "keys: key 1: its \"n\" is missing"},
      {Issuing::Set(R"({"kty":"RSA","n":"A+/=","e":"AQAB"})"), "keys: key 1: its \"n\" is missing"},
      {Issuing::Set(R"({"kty":"EC","crv":"P-256","x":"AA","y":"AA"})"), "its \"x\" is missing"},
      {Issuing::Set(R"({"kty":"OKP","crv":"Ed25519","x":"AA"})"), "key 1: its numbers are no key"},
      // A point that is not on the curve.
      {Issuing::Set(absl::StrReplaceAll(jwk, {{"\"y\":\"", "\"y\":\"A\",\"z\":\""}})), "its \"y\""},
      {Issuing::Set(absl::StrCat(R"({"kty":"EC","crv":"P-256","x":")",
                                 Base64Url(std::string(32, 'x')), R"(","y":")",
                                 Base64Url(std::string(32, 'x')), "\"}")),
       "key 1: its numbers are no key"},
      {Issuing::Set(too_many), "keys: more than 64 keys"},
      {std::string(300'000, ' '), "keys: more than 262144 bytes"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(KeysRefusal(c.text), HasSubstr(c.problem)) << c.text.substr(0, 200);
  }
  EXPECT_EQ(KeysRefusal(Issuing::Set(p384.Jwk() + "," + jwk)), "");
}

TEST_F(TokenTest, IssuersThatAreNoGoodAreNamedWithTheirLine) {
  const std::string second = R"([[issuer]]
name = "other"
iss = "https://ci.example"
audience = "bucketd"
keys_file = "none"
)";
  const auto refusal = [&](const std::string& text) {
    return std::string(Parse(text).status().message());
  };
  EXPECT_THAT(refusal(Entries(second)),
              AllOf(HasSubstr("who.toml:6: the issuer in line 1 has the same name or iss"),
                    HasSubstr("who.toml:10: "), HasSubstr("/none: no such file")));
  EXPECT_THAT(refusal(absl::StrReplaceAll(Entries(), {{"\"ci\"", "\"c/i\""}})),
              AllOf(HasSubstr("who.toml:2: expected letters"),
                    HasSubstr("who.toml:7: JWT:ci/repo:org/*: there is no [[issuer]] with name")));
  EXPECT_THAT(refusal("[[issuer]]\nnames = \"ci\"\n"),
              AllOf(HasSubstr("who.toml:2: there is no key \"names\"; did you mean name?"),
                    HasSubstr("who.toml:1: expected name"), HasSubstr("who.toml:1: expected iss"),
                    HasSubstr("who.toml:1: expected audience"),
                    HasSubstr("who.toml:1: expected keys_file")));
  EXPECT_THAT(refusal(Entries("claim = \"\"\n")), HasSubstr("who.toml:6: expected claim"));
  EXPECT_THAT(refusal("issuer = 3\n"), HasSubstr("who.toml:1: expected entries that begin with"));
  Write("keys", "x");
  EXPECT_THAT(refusal(Entries()), AllOf(HasSubstr("who.toml:5: "), HasSubstr("/keys: expected")));
}

TEST_F(TokenTest, IsRememberedUntilItEndsOrItsIssuerChanges) {
  TokenMemory memory;
  const auto first = std::make_shared<const Identities>(*Parse(Entries()));
  const std::string token = rsa_.Token(kGood);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(*memory.NameIn(token, "ipv4:10.0.0.1", first, kNow), "JWT:ci/repo:org/llama");
  }
  EXPECT_THAT(
      std::string(memory.NameIn(token, "ipv4:10.0.0.1", first, kNow + 660).status().message()),
      HasSubstr("it expired 60 s ago"));
  EXPECT_TRUE(memory.NameIn(token, "ipv4:10.0.0.1", first, kNow).ok());
  Write("keys", ed_.Pem());
  const auto second = std::make_shared<const Identities>(*Parse(Entries()));
  EXPECT_THAT(std::string(memory.NameIn(token, "ipv4:10.0.0.1", second, kNow).status().message()),
              HasSubstr("issuer ci has no such key"));
  EXPECT_TRUE(memory.NameIn(ed_.Token(kGood), "ipv4:10.0.0.1", second, kNow).ok());
}

TEST_F(TokenTest, AHostThatShowsManyWrongOnesWaitsAndNobodyElseDoes) {
  TokenMemory memory;
  const auto identities = std::make_shared<const Identities>(*Parse(Entries()));
  int number = 0;
  const auto show = [&](const std::string& token, const std::string& host, int64_t later = 0) {
    return memory.NameIn(token, host, identities, kNow + later).status();
  };
  const auto wrong = [&] { return absl::StrCat(rsa_.Token(kGood), number++); };
  const std::string known = rsa_.Token(kGood);
  EXPECT_TRUE(show(known, "ipv4:10.0.0.1").ok());
  const std::string one = wrong();
  for (int i = 0; i < 3 * WrongTokens::kAtOnce; ++i) {
    EXPECT_TRUE(absl::IsInvalidArgument(show(one, "ipv4:10.0.0.1"))) << "always the same one";
  }
  for (int i = 1; i < WrongTokens::kAtOnce; ++i) {
    EXPECT_TRUE(absl::IsInvalidArgument(show(wrong(), "ipv4:10.0.0.1"))) << i;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(show(wrong(), "ipv4:10.0.0.1")));
  const std::string fresh = rsa_.Token(absl::StrReplaceAll(kGood, {{"llama", "gpt"}}));
  EXPECT_TRUE(absl::IsResourceExhausted(show(fresh, "ipv4:10.0.0.1"))) << "right ones wait, too";
  EXPECT_TRUE(show(known, "ipv4:10.0.0.1").ok()) << "but none that is known";
  EXPECT_TRUE(absl::IsInvalidArgument(show(one, "ipv4:10.0.0.1")));
  EXPECT_TRUE(absl::IsInvalidArgument(show(wrong(), "ipv4:10.0.0.2")));
  for (int i = 0; i < WrongTokens::kPerSecond; ++i) {
    EXPECT_TRUE(absl::IsInvalidArgument(show(wrong(), "ipv4:10.0.0.1", 1))) << i;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(show(wrong(), "ipv4:10.0.0.1", 1)));
  for (int i = 0; i < WrongTokens::kAtOnce; ++i) {
    EXPECT_TRUE(absl::IsInvalidArgument(show(wrong(), "ipv4:10.0.0.1", 3600))) << i;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(show(wrong(), "ipv4:10.0.0.1", 3600))) << "no more than so";
}

TEST_F(TokenTest, OneThatHasEndedIsNoReasonToCheckItAgain) {
  TokenMemory memory;
  const auto identities = std::make_shared<const Identities>(*Parse(Entries()));
  const std::string token = rsa_.Token(kGood);
  for (int i = 0; i < 2 * WrongTokens::kAtOnce; ++i) {
    const absl::Status ended =
        memory.NameIn(token, "ipv4:10.0.0.1", identities, kNow + 660).status();
    EXPECT_THAT(std::string(ended.message()), HasSubstr("it expired 60 s ago"));
  }
}

TEST_F(TokenTest, KeysAreReadAgainWhenTheyChange) {
  const Certificates certificates(folder_);
  certificates.MakeAuthority("ca");
  certificates.Make("server", {.names = "DNS:localhost"});
  Write("who.toml", Entries());
  prometheus::Registry registry;
  IdentityMetrics metrics(registry);
  Trust trust({{folder_ + "/server.pem", folder_ + "/server.key", ""},
               folder_ + "/who.toml",
               /*tokens=*/true},
              metrics);
  ASSERT_TRUE(trust.Load().ok());
  trust.Look();
  EXPECT_EQ(metrics.identities.taken.Value(), 0);
  const auto good = [&](const Issuing& key) {
    return ReadToken(key.Token(kGood), trust.identities()->issuers()).ok();
  };
  EXPECT_TRUE(good(rsa_));
  Write("keys", "half");
  trust.Look();
  EXPECT_TRUE(good(rsa_));
  EXPECT_EQ(metrics.identities.refused.Value(), 1);
  Write("keys", ed_.Pem());
  trust.Look();
  EXPECT_FALSE(good(rsa_));
  EXPECT_TRUE(good(ed_));
  // A file that is named anew is looked at from then on, and the old one no more.
  Write("later", p256_.Pem());
  Write("who.toml", absl::StrReplaceAll(Entries(), {{"\"keys\"", "\"later\""}}));
  trust.Look();
  EXPECT_TRUE(good(p256_));
  Write("later", rsa_.Pem());
  trust.Look();
  EXPECT_TRUE(good(rsa_));
  EXPECT_EQ(metrics.identities.taken.Value(), 3);
  Write("keys", "half");
  trust.Look();
  EXPECT_EQ(metrics.identities.refused.Value(), 1);
  // Tokens are accepted, so somebody has to issue them.
  Write("who.toml", "[[identity]]\nnames = [\"DNS:a.b.c\"]\ntenant = \"\"\nroles = [\"plan\"]\n");
  trust.Look();
  EXPECT_EQ(metrics.identities.refused.Value(), 2);
  EXPECT_TRUE(good(rsa_));
}

}  // namespace
}  // namespace bucketd
