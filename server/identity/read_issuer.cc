#include "server/identity/read_issuer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bucketd {
namespace {

bool IsName(const std::string& name) {
  return name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

}  // namespace

Issuer ReadIssuer(const toml::table& table, const std::string& folder, TomlProblems& problems) {
  Issuer issuer;
  issuer.line = TomlProblems::LineOf(table);
  problems.CheckKeys(table, {"name", "iss", "audience", "keys_file", "claim"});
  const auto text = [&](const char* key, const char* expected) {
    return problems.Text(table, key, expected).value_or("");
  };
  issuer.name = text("name", "\"NAME\", which names of its tokens begin with");
  if (!IsName(issuer.name)) {
    problems.Add(*table.get("name"), "expected letters, digits, '-', '_' and '.', at most 64");
  }
  issuer.iss = text("iss", "\"...\", what its tokens say");
  issuer.audience = text("audience", "\"...\", what its tokens are meant for");
  if (table.get("claim") != nullptr) issuer.claim = text("claim", "\"...\", a name of a claim");
  issuer.keys_file = text("keys_file", "\"FILE\", its public keys");
  if (issuer.keys_file.empty()) return issuer;
  if (!absl::StartsWith(issuer.keys_file, "/")) {
    issuer.keys_file = absl::StrCat(folder, issuer.keys_file);
  }
  absl::StatusOr<std::vector<PublicKey>> keys = ReadPublicKeys(issuer.keys_file);
  if (!keys.ok()) problems.Add(*table.get("keys_file"), keys.status().message());
  if (keys.ok()) issuer.keys = *std::move(keys);
  return issuer;
}

}  // namespace bucketd
