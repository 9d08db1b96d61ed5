#include "server/identity/identities.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/base/words.h"
#include "server/base/names.h"
#include "server/identity/small_file.h"

#define TOML_EXCEPTIONS 0
#include "toml++/toml.h"

namespace bucketd {
namespace {

constexpr size_t kMaxProblems = 20;

std::string Unknown(absl::string_view what, const std::string& name,
                    const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, known);
  return absl::StrCat("there is no ", what, " \"", name, "\"; ",
                      nearest.empty() ? absl::StrCat("known are ", absl::StrJoin(known, ", "))
                                      : absl::StrCat("did you mean ", nearest, "?"));
}

std::vector<std::string> RoleNames() {
  std::vector<std::string> names;
  for (size_t i = 0; i < kRoles; ++i) names.emplace_back(Name(static_cast<CallerRole>(i)));
  return names;
}

}  // namespace

class IdentitiesReader {
 public:
  explicit IdentitiesReader(const std::string& path) : path_(path) {}

  absl::StatusOr<Identities> Read(const toml::table& file) {
    for (const auto& [key, node] : file) {
      if (key.str() != "identity") {
        Problem(node, Unknown("key", std::string(key.str()), {"identity"}));
      } else if (const toml::array* list = node.as_array();
                 list != nullptr && list->is_homogeneous(toml::node_type::table)) {
        for (const toml::node& entry : *list) ReadEntry(*entry.as_table());
      } else {
        Problem(node, "expected entries that begin with [[identity]]");
      }
    }
    if (problems_.empty() && identities_.entries_.empty()) {
      problems_.push_back(absl::StrCat(
          path_,
          ":1: expected an entry that begins with [[identity]]; with none every caller would "
          "be refused"));
    }
    if (problems_.empty()) return std::move(identities_);
    if (problems_.size() > kMaxProblems) {
      problems_.resize(kMaxProblems);
      problems_.push_back(absl::StrCat(path_, ": and more"));
    }
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Problem(const toml::node& node, absl::string_view what) {
    problems_.push_back(absl::StrCat(path_, ":", node.source().begin.line, ": ", what));
  }

  void ReadEntry(const toml::table& table) {
    Identity identity;
    identity.line = static_cast<int>(table.source().begin.line);
    for (const auto& [key, node] : table) {
      if (key.str() != "names" && key.str() != "tenant" && key.str() != "roles") {
        Problem(node, Unknown("key", std::string(key.str()), {"names", "tenant", "roles"}));
      }
    }
    ReadTenant(table, identity);
    for (const toml::node* node : Texts(table, "roles")) {
      const std::string& name = node->as_string()->get();
      const std::optional<CallerRole> role = RoleNamed(name);
      if (!role.has_value()) Problem(*node, Unknown("role", name, RoleNames()));
      if (role.has_value()) identity.roles.Add(*role);
    }
    identities_.entries_.push_back(identity);
    for (const toml::node* node : Texts(table, "names")) ReadName(*node);
  }

  void ReadTenant(const toml::table& table, Identity& identity) {
    const toml::node* node = table.get("tenant");
    if (node == nullptr || !node->is_string()) {
      Problem(node == nullptr ? table : *node,
              "expected tenant = \"NAME\", \"\" for the default one or \"*\" for any");
      return;
    }
    identity.tenant = node->as_string()->get();
    identity.any_tenant = identity.tenant == "*";
    const absl::Status valid = CheckTenant(identity.tenant);
    if (!valid.ok()) Problem(*node, valid.message());
  }

  // The strings of a list that has one at least.
  std::vector<const toml::node*> Texts(const toml::table& table, const char* key) {
    std::vector<const toml::node*> texts;
    const toml::node* node = table.get(key);
    const toml::array* list = node == nullptr ? nullptr : node->as_array();
    if (list == nullptr || list->empty() || !list->is_homogeneous(toml::node_type::string)) {
      Problem(node == nullptr ? table : *node,
              absl::StrCat("expected ", key, " = [\"...\"], a list of one text or more"));
      return texts;
    }
    for (const toml::node& text : *list) texts.push_back(&text);
    return texts;
  }

  void ReadName(const toml::node& node) {
    absl::StatusOr<NamePattern> pattern = NamePattern::Parse(node.as_string()->get());
    if (!pattern.ok()) {
      Problem(node, pattern.status().message());
      return;
    }
    const auto line = static_cast<int>(node.source().begin.line);
    const auto [seen, is_new] = lines_.emplace(pattern->text(), line);
    const size_t entry = identities_.entries_.size() - 1;
    if (!is_new) {
      Problem(node, absl::StrCat(pattern->text(), " stands in line ", seen->second,
                                 " already; the first entry counts, so this one never would"));
    } else if (lines_.size() > Identities::kMaxNames) {
      Problem(node, absl::StrCat("more than ", Identities::kMaxNames, " names"));
    } else if (pattern->exact()) {
      identities_.exact_.emplace(pattern->text(), entry);
    } else if (identities_.globs_.size() >= Identities::kMaxPatterns) {
      Problem(node, absl::StrCat("more than ", Identities::kMaxPatterns, " names with a *"));
    } else {
      identities_.globs_.push_back({*std::move(pattern), entry});
    }
  }

  const std::string path_;
  Identities identities_;
  absl::flat_hash_map<std::string, int> lines_;  // of patterns
  std::vector<std::string> problems_;
};

absl::StatusOr<Identities> Identities::Parse(absl::string_view text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(std::string_view(text.data(), text.size()));
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.source().begin.line, ": ", std::string(error.description())));
  }
  return IdentitiesReader(path).Read(parsed.table());
}

absl::StatusOr<Identities> Identities::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  return Parse(text, path);
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
