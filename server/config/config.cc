#include "server/config/config.h"

#include <algorithm>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "passes/base/read_file.h"
#include "passes/base/toml.h"
#include "passes/base/words.h"

namespace bucketd {
namespace {

constexpr char kPrefix[] = "BUCKETD_";
// Read before the options are: where the file is.
constexpr char kFileVariable[] = "BUCKETD_CONFIG";

constexpr int64_t kMostConfigBytes = int64_t{1} << 20;

class Loader {
 public:
  Loader() {
    config_.from.assign(OptionTable().size(), "default");
    places_.resize(OptionTable().size());
    for (const OptionRow& row : OptionTable()) {
      keys_.push_back(KeyOf(row));
      flags_.push_back(FlagOf(row));
      variables_.push_back(EnvironmentOf(row));
    }
  }

  void ReadFile(const std::string& path);
  void ReadEnvironment(const std::map<std::string, std::string>& environment);
  void ReadFlags(const std::vector<std::pair<std::string, std::string>>& flags);
  absl::StatusOr<Config> Finish();

 private:
  // `place` begins an error, `from` is what --check says.
  void Set(size_t row, const std::string& text, const std::string& place, const std::string& from) {
    const absl::Status set = SetOption(OptionTable()[row], text, config_.options);
    if (!set.ok()) problems_.push_back(absl::StrCat(place, ": ", set.message()));
    for (size_t other = 0; other < places_.size(); ++other) {
      if (other != row && !AreOneThing(row, other)) continue;
      const auto said = said_.find(other);
      if (said != said_.end() && said->second != text) {
        problems_.push_back(absl::StrCat(place, ": ", places_[other],
                                         " says otherwise, and both set the same: leave one out"));
      }
      places_[other] = place;
      config_.from[other] = from;
    }
    said_[row] = text;
  }
  // As --store-dir and --store.
  bool AreOneThing(size_t row, size_t other) {
    const auto field = [this](size_t which) {
      const OptionField found = OptionTable()[which].field(config_.options);
      const auto* text = std::get_if<std::string*>(&found);
      return text == nullptr ? nullptr : *text;
    };
    return field(row) != nullptr && field(row) == field(other);
  }
  void Unknown(absl::string_view place, const std::string& name, absl::string_view what,
               const std::vector<std::string>& known) {
    const std::string nearest = NearestName(name, known);
    problems_.push_back(absl::StrCat(place, name, ": there is no such ", what,
                                     nearest.empty()
                                         ? "; bucketd --help lists them"
                                         : absl::StrCat("; did you mean ", nearest, "?")));
  }
  static size_t IndexIn(const std::vector<std::string>& names, const std::string& name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  }
  void ReadEntry(const std::string& path, const std::string& key, const toml::node& node);

  Config config_;
  std::vector<std::string> places_;     // by row; "": not set
  std::map<size_t, std::string> said_;  // by row, of a source in which no order is meant
  std::vector<std::string> keys_;
  std::vector<std::string> flags_;
  std::vector<std::string> variables_;
  std::vector<std::string> problems_;
};

// What the operator wrote, as text; nothing for what is no single value.
std::string ValueText(const toml::node& node, bool& is_value) {
  is_value = true;
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* real = node.as_floating_point()) return absl::StrFormat("%.15g", real->get());
  if (const auto* integer = node.as_integer()) {
    const bool octal = (integer->flags() & toml::value_flags::format_as_octal) ==
                       toml::value_flags::format_as_octal;
    return octal ? absl::StrFormat("%o", integer->get()) : absl::StrCat(integer->get());
  }
  is_value = false;
  return "";
}

void Loader::ReadEntry(const std::string& path, const std::string& key, const toml::node& node) {
  const std::string from = absl::StrCat(path, ":", node.source().begin.line);
  const size_t row = IndexIn(keys_, key);
  if (row == keys_.size()) {
    Unknown(absl::StrCat(from, ": "), key, "key", keys_);
    return;
  }
  bool is_value = false;
  const std::string text = ValueText(node, is_value);
  const std::string place = absl::StrCat(from, ": ", key);
  if (!is_value) {
    problems_.push_back(absl::StrCat(place, ": expected one value, is a list, table or date"));
    return;
  }
  if (node.is_string() &&
      std::holds_alternative<bool*>(OptionTable()[row].field(config_.options))) {
    problems_.push_back(absl::StrCat(place, ": expected true or false, without quotes"));
    return;
  }
  Set(row, text, place, from);
}

void Loader::ReadFile(const std::string& path) {
  const absl::StatusOr<std::string> text = bucketd::ReadFile(path, kMostConfigBytes);
  if (!text.ok()) {
    problems_.push_back(absl::StrCat("--config: ", text.status().message()));
    return;
  }
  const toml::parse_result parsed = toml::parse(*text);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    const auto& at = error.source().begin;
    problems_.push_back(
        absl::StrCat(path, ":", at.line, ":", at.column, ": ", std::string(error.description())));
    return;
  }
  for (const auto& [key, node] : parsed.table()) ReadEntry(path, std::string(key.str()), node);
}

void Loader::ReadEnvironment(const std::map<std::string, std::string>& environment) {
  said_.clear();
  for (const auto& [name, text] : environment) {
    if (!absl::StartsWith(name, kPrefix) || name == kFileVariable) continue;
    const size_t row = IndexIn(variables_, name);
    if (row < variables_.size()) {
      Set(row, text, name, absl::StrCat("environment ", name));
    } else if (!NearestName(name, variables_).empty()) {
      Unknown("environment: ", name, "variable", variables_);
    }
  }
}

void Loader::ReadFlags(const std::vector<std::pair<std::string, std::string>>& flags) {
  for (const auto& [name, text] : flags) {
    const std::string flag = absl::StrCat("--", name);
    const size_t row = IndexIn(flags_, flag);
    if (row < flags_.size()) {
      said_.clear();  // the later of two holds
      Set(row, text, flag, absl::StrCat("flag ", flag));
    } else {
      Unknown("", flag, "flag", flags_);
    }
  }
}

absl::StatusOr<Config> Loader::Finish() {
  // Ranges are checked on what won; where a value could not be read, that is the default.
  const absl::Status valid = config_.options.Validate([this](absl::string_view name) {
    const std::string flag = absl::StrCat("--", name);
    const std::string& place = places_[IndexIn(flags_, flag)];
    return place.empty() ? flag : place;
  });
  if (!valid.ok()) problems_.emplace_back(valid.message());
  if (problems_.empty()) return std::move(config_);
  return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
}

// A basic string of TOML.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppend(&out, absl::StrFormat("\\u%04X", byte));
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

}  // namespace

absl::StatusOr<Config> LoadConfig(const ConfigSources& sources) {
  Loader loader;
  if (!sources.file.empty()) loader.ReadFile(sources.file);
  loader.ReadEnvironment(sources.environment);
  loader.ReadFlags(sources.flags);
  return loader.Finish();
}

std::string PrintConfig(const Config& config) {
  std::string out;
  const char* group = "";
  for (size_t i = 0; i < OptionTable().size(); ++i) {
    const OptionRow& row = OptionTable()[i];
    if (absl::string_view(group) != row.group) {
      group = row.group;
      absl::StrAppend(&out, i == 0 ? "" : "\n", "# ", group, "\n");
    }
    ServerOptions copy = config.options;
    const OptionField field = row.field(copy);
    const bool quoted =
        std::holds_alternative<std::string*>(field) || std::holds_alternative<OctalField>(field);
    const std::string text = PrintOption(row, config.options);
    absl::StrAppend(&out,
                    absl::StrFormat("%-48s # %s\n",
                                    absl::StrCat(KeyOf(row), " = ", quoted ? Quoted(text) : text),
                                    config.from[i]));
  }
  return out;
}

}  // namespace bucketd
