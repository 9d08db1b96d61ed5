// What is wrong with a file of TOML, with the line of each mistake.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/base/toml.h"

namespace bucketd {

// INVALID_ARGUMENT: "PATH:LINE: what is wrong".
absl::StatusOr<toml::table> ParseToml(absl::string_view text, const std::string& path);

class TomlProblems {
 public:
  explicit TomlProblems(std::string path) : path_(std::move(path)) {}

  void Add(const toml::node& node, absl::string_view what) { Add(LineOf(node), what); }
  void Add(int line, absl::string_view what);
  // "there is no role "plna"; did you mean plan?"
  void AddUnknown(const toml::node& node, absl::string_view what, const std::string& name,
                  const std::vector<std::string>& known);
  // A problem for each key of the table that is not known.
  void CheckKeys(const toml::table& table, const std::vector<std::string>& known);

  // The table's text of that key, which has to be there and not empty; nothing, and a problem that
  // says what was `expected`, where it is not.
  std::optional<std::string> Text(const toml::table& table, const char* key,
                                  absl::string_view expected);
  // The tables of `[[key]]`; none, and a problem, where it is something else.
  std::vector<const toml::table*> Tables(const toml::node& node, absl::string_view key);
  // The texts of a list that has one at least.
  std::vector<const toml::node*> Texts(const toml::table& table, const char* key);

  static int LineOf(const toml::node& node) { return static_cast<int>(node.source().begin.line); }
  bool none() const { return problems_.empty(); }
  // INVALID_ARGUMENT: the first of them, one a line, as "PATH:LINE: what was expected".
  absl::Status status() const;

 private:
  static constexpr size_t kMax = 20;

  const std::string path_;
  std::vector<std::string> problems_;
};

}  // namespace bucketd
