#include "server/identity/toml_problems.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/words.h"

namespace bucketd {

absl::StatusOr<toml::table> ParseToml(absl::string_view text, const std::string& path) {
  toml::parse_result parsed = toml::parse(std::string_view(text.data(), text.size()));
  if (parsed) return std::move(parsed).table();
  const toml::parse_error& error = parsed.error();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":", error.source().begin.line, ": ", std::string(error.description())));
}

void TomlProblems::Add(int line, absl::string_view what) {
  problems_.push_back(absl::StrCat(path_, ":", line, ": ", what));
}

void TomlProblems::AddUnknown(const toml::node& node, absl::string_view what,
                              const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, known);
  Add(node, absl::StrCat("there is no ", what, " \"", name, "\"; ",
                         nearest.empty() ? absl::StrCat("known are ", absl::StrJoin(known, ", "))
                                         : absl::StrCat("did you mean ", nearest, "?")));
}

void TomlProblems::CheckKeys(const toml::table& table, const std::vector<std::string>& known) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      AddUnknown(node, "key", name, known);
    }
  }
}

std::optional<std::string> TomlProblems::Text(const toml::table& table, const char* key,
                                              absl::string_view expected) {
  const toml::node* node = table.get(key);
  if (node == nullptr || !node->is_string() || node->as_string()->get().empty()) {
    Add(node == nullptr ? table : *node, absl::StrCat("expected ", key, " = ", expected));
    return std::nullopt;
  }
  return node->as_string()->get();
}

std::vector<const toml::table*> TomlProblems::Tables(const toml::node& node,
                                                     absl::string_view key) {
  std::vector<const toml::table*> tables;
  const toml::array* list = node.as_array();
  if (list == nullptr || !list->is_homogeneous(toml::node_type::table)) {
    Add(node, absl::StrCat("expected entries that begin with [[", key, "]]"));
    return tables;
  }
  for (const toml::node& entry : *list) tables.push_back(entry.as_table());
  return tables;
}

std::vector<const toml::node*> TomlProblems::Texts(const toml::table& table, const char* key) {
  std::vector<const toml::node*> texts;
  const toml::node* node = table.get(key);
  const toml::array* list = node == nullptr ? nullptr : node->as_array();
  if (list == nullptr || list->empty() || !list->is_homogeneous(toml::node_type::string)) {
    Add(node == nullptr ? table : *node,
        absl::StrCat("expected ", key, " = [\"...\"], a list of one text or more"));
    return texts;
  }
  for (const toml::node& text : *list) texts.push_back(&text);
  return texts;
}

absl::Status TomlProblems::status() const {
  if (none()) return absl::OkStatus();
  const auto shown =
      problems_.begin() + static_cast<std::ptrdiff_t>(std::min(problems_.size(), kMax));
  std::string all = absl::StrJoin(problems_.begin(), shown, "\n");
  if (problems_.size() > kMax) absl::StrAppend(&all, "\n", path_, ": and more");
  return absl::InvalidArgumentError(all);
}

}  // namespace bucketd
