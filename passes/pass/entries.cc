#include "passes/pass/entries.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

absl::Status Bad(absl::string_view entry, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("entry \"", entry, "\": ", text,
                   "; write entries like tok_embeddings,layers.[0-31],norm+output"));
}

bool HasWildcard(absl::string_view path) {
  for (const absl::string_view component : absl::StrSplit(path, '.')) {
    if (component == "*") return true;
  }
  return false;
}

absl::Status CheckComponents(absl::string_view entry, absl::string_view path) {
  for (const absl::string_view component : absl::StrSplit(path, '.')) {
    if (component.empty()) return Bad(entry, "has an empty component");
    if (component == "*") continue;
    for (const char c : component) {
      if (absl::string_view("*[]: \t").find(c) != absl::string_view::npos ||
          !absl::ascii_isprint(static_cast<unsigned char>(c))) {
        return Bad(entry, absl::StrCat("'", absl::string_view(&c, 1),
                                       "' is not allowed here (a component is a name, a whole "
                                       "\"*\", or holds one [lo-hi])"));
      }
    }
  }
  return absl::OkStatus();
}

bool ParseBound(absl::string_view text, int32_t& value) {
  if (text.empty() || text.size() > 9) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return absl::SimpleAtoi(text, &value);
}

// "layers.[0-2].x" -> layers.0.x, layers.1.x, layers.2.x.
absl::StatusOr<std::vector<std::string>> ExpandRanges(absl::string_view entry,
                                                      absl::string_view path, int64_t room) {
  std::vector<std::string> done = {""};
  bool first = true;
  for (const absl::string_view component : absl::StrSplit(path, '.')) {
    const size_t open = component.find('['), close = component.find(']');
    int32_t lo = 0, hi = 0;
    absl::string_view head = component, tail;
    const bool range = open != absl::string_view::npos;
    if (range) {
      if (close == absl::string_view::npos || close < open) return Bad(entry, "'[' without ']'");
      head = component.substr(0, open);
      tail = component.substr(close + 1);
      const std::pair<absl::string_view, absl::string_view> bounds =
          absl::StrSplit(component.substr(open + 1, close - open - 1), absl::MaxSplits('-', 1));
      if (!ParseBound(bounds.first, lo) || !ParseBound(bounds.second, hi)) {
        return Bad(entry, "a range is [lo-hi], two decimal numbers");
      }
      if (lo > hi) return Bad(entry, absl::StrCat("the range [", lo, "-", hi, "] is reversed"));
    }
    const int64_t values = int64_t{hi} - lo + 1;
    if (values * static_cast<int64_t>(done.size()) > room) {
      return Bad(entry, absl::StrCat("expands beyond ", kMaxEntries, " entries"));
    }
    std::vector<std::string> next;
    for (const std::string& prefix : done) {
      for (int64_t v = lo; v <= hi; ++v) {
        next.push_back(absl::StrCat(prefix, first ? "" : ".", head,
                                    range ? absl::StrCat(v) : std::string(), tail));
      }
    }
    done = std::move(next);
    first = false;
  }
  return done;
}

absl::Status ParseOne(absl::string_view text, bool allow_distances, std::vector<Entry>& entries) {
  if (text.empty()) return Bad(text, "is empty");
  absl::string_view names = text;
  int32_t distance = -1;
  const size_t colon = text.rfind(':');
  if (allow_distances && colon != absl::string_view::npos) {
    names = text.substr(0, colon);
    if (!ParseBound(text.substr(colon + 1), distance)) {
      return Bad(text, "a distance is a decimal number, as in layers.3:2");
    }
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(names, '+');
  if (parts.size() > 1) {
    Entry entry{std::string(names), {}, distance};
    for (const absl::string_view part : parts) {
      const absl::string_view path = absl::StripAsciiWhitespace(part);
      if (path.find('[') != absl::string_view::npos || HasWildcard(path)) {
        return Bad(text,
                   "'+' together with a range or \"*\" is ambiguous: name the modules one by "
                   "one");
      }
      RETURN_IF_ERROR(CheckComponents(text, path));
      entry.paths.emplace_back(path);
    }
    entries.push_back(std::move(entry));
    return absl::OkStatus();
  }
  const absl::string_view path = absl::StripAsciiWhitespace(names);
  ASSIGN_OR_RETURN(const std::vector<std::string> expanded,
                   ExpandRanges(text, path, kMaxEntries - static_cast<int64_t>(entries.size())));
  for (const std::string& one : expanded) {
    RETURN_IF_ERROR(CheckComponents(text, one));
    entries.push_back({one, {one}, distance});
  }
  return absl::OkStatus();
}

absl::Status CheckDistinct(const std::vector<Entry>& entries) {
  absl::flat_hash_set<absl::string_view> seen;
  for (const Entry& entry : entries) {
    for (const std::string& path : entry.paths) {
      if (!seen.insert(path).second) {
        return Bad(entry.name, absl::StrCat("\"", path, "\" is named twice"));
      }
    }
  }
  return absl::OkStatus();
}

// The leading components of `label` that `pattern` matches, or "".
absl::string_view Match(absl::Span<const absl::string_view> pattern, absl::string_view label) {
  size_t at = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (i > 0) {
      if (at >= label.size()) return "";
      ++at;  // the dot
    }
    const size_t end = std::min(label.find('.', at), label.size());
    if (pattern[i] != "*" && pattern[i] != label.substr(at, end - at)) return "";
    at = end;
  }
  return label.substr(0, at);
}

}  // namespace

bool Holds(absl::string_view prefix, absl::string_view path) {
  return path.size() >= prefix.size() && path.substr(0, prefix.size()) == prefix &&
         (path.size() == prefix.size() || path[prefix.size()] == '.');
}

absl::StatusOr<std::vector<Entry>> ParseEntries(absl::string_view text, bool allow_distances) {
  std::vector<Entry> entries;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    RETURN_IF_ERROR(ParseOne(absl::StripAsciiWhitespace(part), allow_distances, entries));
  }
  RETURN_IF_ERROR(CheckDistinct(entries));
  return entries;
}

absl::StatusOr<std::vector<Entry>> ExpandWildcards(std::vector<Entry> entries,
                                                   absl::Span<const absl::string_view> labels) {
  std::vector<Entry> out;
  for (Entry& entry : entries) {
    if (!HasWildcard(entry.paths[0])) {
      out.push_back(std::move(entry));
      continue;
    }
    const std::vector<absl::string_view> pattern = absl::StrSplit(entry.paths[0], '.');
    absl::flat_hash_set<absl::string_view> seen;
    for (const absl::string_view label : labels) {
      const absl::string_view match = Match(pattern, label);
      if (match.empty() || !seen.insert(match).second) continue;
      out.push_back({std::string(match), {std::string(match)}, entry.distance});
      if (static_cast<int64_t>(out.size()) > kMaxEntries) {
        return Bad(entry.name, absl::StrCat("expands beyond ", kMaxEntries, " entries"));
      }
    }
    if (seen.empty()) out.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(CheckDistinct(out));
  return out;
}

}  // namespace bucketd
