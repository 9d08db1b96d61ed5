#include "server/jobs/machine/job_signature.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "passes/pass/option_table.h"
#include "passes/plan_key.h"

namespace bucketd {
namespace {

constexpr size_t kMaxFields = 3;
constexpr size_t kMaxValueBytes = 120;

using Field = std::pair<absl::string_view, absl::string_view>;  // name, value

Field Split(absl::string_view line) { return absl::StrSplit(line, absl::MaxSplits('=', 1)); }

std::string Shown(absl::string_view value) {
  if (value.size() <= kMaxValueBytes) return std::string(value);
  return absl::StrCat(value.substr(0, kMaxValueBytes), "...");
}

// The lines of options at their defaults.
const std::map<std::string, std::string>& DefaultLines() {
  static const auto* lines = [] {
    auto* made = new std::map<std::string, std::string>;
    const PlanOptions defaults;
    for (const OptionInfo& option : AllOptions()) {
      (*made)[std::string(option.name)] =
          absl::StrCat("\"", absl::CEscape(option.print(defaults)), "\"");
    }
    return made;
  }();
  return *lines;
}

bool IsDefault(const Field& field) {
  const auto found = DefaultLines().find(std::string(field.first));
  return found != DefaultLines().end() && found->second == field.second;
}

// The first line names the key's format, not anything that was presented.
std::vector<absl::string_view> Lines(absl::string_view signature) {
  std::vector<absl::string_view> lines = absl::StrSplit(signature, '\n', absl::SkipEmpty());
  if (!lines.empty()) lines.erase(lines.begin());
  return lines;
}

}  // namespace

std::string SignatureOf(absl::string_view plan_key, absl::string_view profile_as_asked) {
  return absl::StrCat(ChosenPartOf(plan_key), "cost_profile=\"", absl::CEscape(profile_as_asked),
                      "\"\n");
}

bool SameSignature(absl::string_view kept, absl::string_view now) {
  if (kept == now) return true;
  const std::vector<absl::string_view> old_lines = Lines(kept);
  size_t at = 0;
  for (const absl::string_view line : Lines(now)) {
    if (at < old_lines.size() && old_lines[at] == line) {
      ++at;
      continue;
    }
    // A line that the older one lacks: an option that came since.
    const Field field = Split(line);
    const bool known_then = at < old_lines.size() && Split(old_lines[at]).first == field.first;
    if (known_then || !IsDefault(field)) return false;
  }
  return at == old_lines.size();
}

std::string DifferingFields(absl::string_view a, absl::string_view b) {
  const std::vector<absl::string_view> in_a = Lines(a), in_b = Lines(b);
  std::vector<std::string> shown;
  size_t differing = 0;
  for (size_t i = 0; i < in_a.size() && i < in_b.size(); ++i) {
    const Field one = Split(in_a[i]), two = Split(in_b[i]);
    // Lists of different lengths: their lengths, a line before, have been named.
    if (one.first != two.first) break;
    if (one.second == two.second || one.first == "graph") continue;
    if (++differing > kMaxFields) continue;
    shown.push_back(
        absl::StrCat(one.first, " is ", Shown(one.second), " against ", Shown(two.second)));
  }
  if (differing > kMaxFields) shown.push_back(absl::StrCat(differing - kMaxFields, " more fields"));
  return absl::StrJoin(shown, "; ");
}

}  // namespace bucketd
