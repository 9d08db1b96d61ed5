#include "server/identity/token.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

#include "passes/base/status_macros.h"
#include "server/identity/json_web_key.h"

namespace bucketd {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTried = 8;  // signatures for one token
constexpr size_t kMaxSubjectBytes = 1024;
constexpr double kLastSecond = 253'402'300'799;  // of the year 9999

absl::Status Refused(absl::string_view why) { return absl::InvalidArgumentError(why); }

// What somebody else wrote, for messages.
std::string Shown(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, 128)), "\"");
}

absl::StatusOr<Json> ObjectIn(absl::string_view part, absl::string_view what) {
  std::string text;
  if (FromBase64Url(part, &text)) {
    Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (object.is_object()) return object;
  }
  return Refused(absl::StrCat("its ", what, " is no JSON object in base64 for URLs"));
}

std::optional<std::string> TextOf(const Json& object, absl::string_view field) {
  const auto found = object.find(std::string(field));
  if (found == object.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

const Issuer* IssuerOf(const Json& claims, absl::Span<const Issuer> issuers) {
  const std::optional<std::string> iss = TextOf(claims, "iss");
  const auto found = std::find_if(issuers.begin(), issuers.end(), [&](const Issuer& issuer) {
    return iss.has_value() && issuer.iss == *iss;
  });
  return found == issuers.end() ? nullptr : &*found;
}

// The header says which key; it never says how the key is used.
absl::StatusOr<std::vector<const PublicKey*>> KeysFor(const Json& header, const Issuer& issuer) {
  if (header.contains("crit"))
    return Refused("its header wants an extension (crit); none is known");
  const std::string algorithm = TextOf(header, "alg").value_or("");
  const std::optional<std::string> id = TextOf(header, "kid");
  std::vector<const PublicKey*> keys;
  for (const PublicKey& key : issuer.keys) {
    const bool is_named = !id.has_value() || key.id().empty() || key.id() == *id;
    if (is_named && algorithm == Name(key.kind())) keys.push_back(&key);
  }
  if (keys.empty()) {
    return Refused(absl::StrCat("its header says alg ", Shown(algorithm),
                                id.has_value() ? absl::StrCat(" and kid ", Shown(*id)) : "",
                                "; issuer ", issuer.name, " has no such key"));
  }
  if (keys.size() > kMaxTried) {
    return Refused(absl::StrCat("its header says no kid, and issuer ", issuer.name, " has ",
                                keys.size(), " keys for ", algorithm));
  }
  return keys;
}

absl::Status CheckAudience(const Json& claims, const Issuer& issuer) {
  const auto said = claims.find("aud");
  const bool fits =
      said != claims.end() &&
      (said->is_array() ? std::find(said->begin(), said->end(), issuer.audience) != said->end()
                        : *said == issuer.audience);
  if (fits) return absl::OkStatus();
  return Refused(absl::StrCat("it is not meant for \"", issuer.audience,
                              "\", the audience that is wanted of issuer ", issuer.name));
}

// Of a time as tokens have it.
std::optional<int64_t> SecondsOf(const Json& claims, const char* field) {
  const auto found = claims.find(field);
  if (found == claims.end() || !found->is_number()) return std::nullopt;
  const double seconds = found->get<double>();
  if (!(seconds >= 0 && seconds <= kLastSecond)) return std::nullopt;
  return static_cast<int64_t>(std::floor(seconds));
}

absl::StatusOr<Token> TokenOf(const Json& claims, const Issuer& issuer) {
  RETURN_IF_ERROR(CheckAudience(claims, issuer));
  const std::optional<int64_t> expires = SecondsOf(claims, "exp"),
                               begins = SecondsOf(claims, "nbf");
  if (!expires.has_value()) return Refused("it has no end (exp, seconds since 1970)");
  if (!begins.has_value() && claims.contains("nbf")) return Refused("its nbf is no time");
  const std::string subject = TextOf(claims, issuer.claim).value_or("");
  if (subject.empty() || subject.size() > kMaxSubjectBytes) {
    return Refused(absl::StrCat("its claim \"", issuer.claim, "\" is no text of 1 to ",
                                kMaxSubjectBytes, " bytes"));
  }
  return Token{absl::StrCat("JWT:", issuer.name, "/", subject), begins.value_or(0), *expires};
}

}  // namespace

absl::StatusOr<Token> ReadToken(absl::string_view text, absl::Span<const Issuer> issuers) {
  if (text.size() > kMaxTokenBytes) {
    return Refused(
        absl::StrCat("it has ", text.size(), " bytes; ", kMaxTokenBytes, " are the most"));
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  if (parts.size() != 3) {
    return Refused("expected a signed JSON Web Token: three parts with dots between them");
  }
  ASSIGN_OR_RETURN(const Json header, ObjectIn(parts[0], "header"));
  ASSIGN_OR_RETURN(const Json claims, ObjectIn(parts[1], "body"));
  const Issuer* issuer = IssuerOf(claims, issuers);
  if (issuer == nullptr) {
    return Refused(absl::StrCat("its issuer (iss) is ", Shown(TextOf(claims, "iss").value_or("")),
                                ", whom nobody knows here"));
  }
  ASSIGN_OR_RETURN(const std::vector<const PublicKey*> keys, KeysFor(header, *issuer));
  std::string signature;
  const absl::string_view is_signed = text.substr(0, parts[0].size() + 1 + parts[1].size());
  const bool known = FromBase64Url(parts[2], &signature) &&
                     std::any_of(keys.begin(), keys.end(), [&](const PublicKey* key) {
                       return key->Signed(is_signed, signature);
                     });
  if (!known) {
    return Refused(absl::StrCat("its signature is of no key of issuer ", issuer->name));
  }
  return TokenOf(claims, *issuer);
}

absl::Status CheckIsCurrent(const Token& token, int64_t now_s) {
  if (now_s >= token.expires_s + kTokenLeewaySeconds) {
    return Refused(absl::StrCat("it expired ", now_s - token.expires_s, " s ago"));
  }
  if (now_s + kTokenLeewaySeconds < token.not_before_s) {
    return Refused(absl::StrCat("it is valid only in ", token.not_before_s - now_s, " s"));
  }
  return absl::OkStatus();
}

}  // namespace bucketd
