#include "server/identity/identities.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/base/names.h"
#include "server/identity/small_file.h"
#include "server/identity/toml_problems.h"

namespace bucketd {
namespace {

std::vector<std::string> RoleNames() {
  std::vector<std::string> names;
  for (size_t i = 0; i < kRoles; ++i) names.emplace_back(Name(static_cast<CallerRole>(i)));
  return names;
}

bool IsName(const std::string& name) {
  return name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

// What is wrong goes to `problems`. `folder` is where the file is.
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

}  // namespace

class IdentitiesReader {
 public:
  explicit IdentitiesReader(const std::string& path)
      : folder_(path.substr(0, path.rfind('/') + 1)), problems_(path) {}

  absl::StatusOr<Identities> Read(const toml::table& file) {
    problems_.CheckKeys(file, {"identity", "issuer"});
    if (const toml::node* node = file.get("issuer"); node != nullptr) {
      for (const toml::table* entry : problems_.Tables(*node, "issuer")) AddIssuer(*entry);
    }
    if (const toml::node* node = file.get("identity"); node != nullptr) {
      for (const toml::table* entry : problems_.Tables(*node, "identity")) ReadEntry(*entry);
    }
    if (problems_.none() && identities_.entries_.empty()) {
      problems_.Add(1,
                    "expected an entry that begins with [[identity]]; with none every caller would "
                    "be refused");
    }
    RETURN_IF_ERROR(problems_.status());
    return std::move(identities_);
  }

 private:
  void AddIssuer(const toml::table& table) {
    Issuer issuer = ReadIssuer(table, folder_, problems_);
    for (const Issuer& other : identities_.issuers_) {
      if (other.name != issuer.name && other.iss != issuer.iss) continue;
      problems_.Add(table, absl::StrCat("the issuer in line ", other.line,
                                        " has the same name or iss; each has its own"));
    }
    identities_.issuers_.push_back(std::move(issuer));
  }

  void ReadEntry(const toml::table& table) {
    Identity identity;
    identity.line = TomlProblems::LineOf(table);
    problems_.CheckKeys(table, {"names", "tenant", "roles"});
    ReadTenant(table, identity);
    for (const toml::node* node : problems_.Texts(table, "roles")) {
      const std::string& name = node->as_string()->get();
      const std::optional<CallerRole> role = RoleNamed(name);
      if (!role.has_value()) problems_.AddUnknown(*node, "role", name, RoleNames());
      if (role.has_value()) identity.roles.Add(*role);
    }
    identities_.entries_.push_back(identity);
    for (const toml::node* node : problems_.Texts(table, "names")) ReadName(*node);
  }

  void ReadTenant(const toml::table& table, Identity& identity) {
    const toml::node* node = table.get("tenant");
    if (node == nullptr || !node->is_string()) {
      problems_.Add(node == nullptr ? table : *node,
                    "expected tenant = \"NAME\", \"\" for the default one or \"*\" for any");
      return;
    }
    identity.tenant = node->as_string()->get();
    identity.any_tenant = identity.tenant == "*";
    const absl::Status valid = CheckTenant(identity.tenant);
    if (!valid.ok()) problems_.Add(*node, valid.message());
  }

  // Of a name of a token's, which can be nobody's if there is no such issuer.
  bool HasIssuer(const NamePattern& pattern) const {
    const std::string issuer = pattern.issuer();
    return issuer.empty() || std::any_of(identities_.issuers_.begin(), identities_.issuers_.end(),
                                         [&](const Issuer& known) { return known.name == issuer; });
  }

  void ReadName(const toml::node& node) {
    absl::StatusOr<NamePattern> pattern = NamePattern::Parse(node.as_string()->get());
    if (!pattern.ok()) {
      problems_.Add(node, pattern.status().message());
      return;
    }
    const auto [seen, is_new] = lines_.emplace(pattern->text(), TomlProblems::LineOf(node));
    const size_t entry = identities_.entries_.size() - 1;
    if (!is_new) {
      problems_.Add(node,
                    absl::StrCat(pattern->text(), " stands in line ", seen->second,
                                 " already; the first entry counts, so this one never would"));
    } else if (!HasIssuer(*pattern)) {
      problems_.Add(node, absl::StrCat(pattern->text(), ": there is no [[issuer]] with name = \"",
                                       pattern->issuer(), "\""));
    } else if (lines_.size() > Identities::kMaxNames) {
      problems_.Add(node, absl::StrCat("more than ", Identities::kMaxNames, " names"));
    } else if (pattern->exact()) {
      identities_.exact_.emplace(pattern->text(), entry);
    } else if (identities_.globs_.size() >= Identities::kMaxPatterns) {
      problems_.Add(node, absl::StrCat("more than ", Identities::kMaxPatterns, " names with a *"));
    } else {
      identities_.globs_.push_back({*std::move(pattern), entry});
    }
  }

  const std::string folder_;  // "": where we are; else it ends in a slash
  TomlProblems problems_;
  Identities identities_;
  absl::flat_hash_map<std::string, int> lines_;  // of patterns
};

absl::StatusOr<Identities> Identities::Parse(absl::string_view text, const std::string& path) {
  ASSIGN_OR_RETURN(const toml::table file, ParseToml(text, path));
  return IdentitiesReader(path).Read(file);
}

absl::StatusOr<Identities> Identities::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  return Parse(text, path);
}

std::vector<std::string> Identities::files() const {
  std::vector<std::string> files;
  for (const Issuer& issuer : issuers_) files.push_back(issuer.keys_file);
  return files;
}

const Identity* Identities::Find(absl::Span<const std::string> names, std::string* fits) const {
  size_t first = std::numeric_limits<size_t>::max();
  const std::string* by = nullptr;
  const auto better = [&](size_t entry, const std::string& name) {
    if (entry >= first) return;
    first = entry;
    by = &name;
  };
  for (const std::string& name : names) {
    const auto found = exact_.find(NamePattern::Canonical(name));
    if (found != exact_.end()) better(found->second, name);
  }
  for (const Glob& glob : globs_) {
    if (glob.entry >= first) break;
    for (const std::string& name : names) {
      if (glob.pattern.Fits(name)) better(glob.entry, name);
    }
  }
  if (by == nullptr) return nullptr;
  if (fits != nullptr) *fits = *by;
  return &entries_[first];
}

}  // namespace bucketd
