#include "passes/pass/entries.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "passes/base/status_macros.h"
#include "passes/ir/text.h"

namespace bucketd {
namespace {

absl::Status Bad(absl::string_view entry, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("entry \"", Printable(entry), "\": ", text,
                   "; write entries like tok_embeddings,layers.[0-31],norm+output"));
}

std::string TooMany() { return absl::StrCat("expands beyond ", kMaxEntries, " entries"); }
std::string TooLong() { return absl::StrCat("expands beyond ", kMaxEntryBytes, " bytes"); }

bool HasWildcard(absl::string_view path) {
  for (const absl::string_view component : absl::StrSplit(path, '.')) {
    if (component == "*") return true;
  }
  return false;
}

// Labels that all paths with "*" together are held against.
constexpr int64_t kMaxLabelsSeen = 50'000'000;

// What regular expressions hold, and no name of a module.
constexpr absl::string_view kRegexSigns = "\\()|^$?{}";

absl::Status CheckComponents(absl::string_view entry, absl::string_view path) {
  int32_t components = 0;
  for (const absl::string_view component : absl::StrSplit(path, '.')) {
    if (++components > kMaxComponents) {
      return Bad(entry, absl::StrCat("has more than ", kMaxComponents, " components"));
    }
    if (component.empty()) return Bad(entry, "has an empty component");
    if (component == "*") continue;
    for (const char c : component) {
      if (kRegexSigns.find(c) != absl::string_view::npos) {
        return Bad(entry,
                   absl::StrCat("'", absl::string_view(&c, 1),
                                "' is not allowed: patterns are globs, not regular "
                                "expressions (a whole component \"*\", or one [lo-hi] in it)"));
      }
      if (absl::string_view("*[]: \t").find(c) != absl::string_view::npos ||
          !absl::ascii_isprint(static_cast<unsigned char>(c))) {
        return Bad(entry, absl::StrCat("'", Printable(absl::string_view(&c, 1)),
                                       "' is not allowed here (a component is a name, a whole "
                                       "\"*\", or holds one [lo-hi])"));
      }
    }
  }
  return absl::OkStatus();
}

// What a list may still expand to: paths, and bytes of all of them.
struct Room {
  int64_t paths = kMaxEntries, bytes = kMaxEntryBytes;
};

// "layers.[0-2].x" -> layers.0.x, layers.1.x, layers.2.x. What stands between two ranges is written
// once for each path, so that long paths cost their length.
absl::StatusOr<std::vector<std::string>> ExpandRanges(absl::string_view entry,
                                                      absl::string_view path, Room& room) {
  std::vector<std::string> done = {""};
  std::string between;
  bool first = true;
  for (const absl::string_view component : absl::StrSplit(path, '.')) {
    const size_t open = component.find('['), close = component.find(']');
    absl::StrAppend(&between, first ? "" : ".", component.substr(0, open));
    first = false;
    if (open == absl::string_view::npos) continue;
    if (close == absl::string_view::npos || close < open) return Bad(entry, "'[' without ']'");
    const std::pair<absl::string_view, absl::string_view> bounds =
        absl::StrSplit(component.substr(open + 1, close - open - 1), absl::MaxSplits('-', 1));
    int32_t lo = 0, hi = 0;
    if (!ParseNumber(bounds.first, lo) || !ParseNumber(bounds.second, hi)) {
      return Bad(entry, "a range is [lo-hi], two decimal numbers");
    }
    if (lo > hi) return Bad(entry, absl::StrCat("the range [", lo, "-", hi, "] is reversed"));
    const int64_t count = (int64_t{hi} - lo + 1) * static_cast<int64_t>(done.size());
    if (count > room.paths) return Bad(entry, TooMany());
    if (count > room.bytes / static_cast<int64_t>(path.size())) return Bad(entry, TooLong());
    const absl::string_view tail = component.substr(close + 1);
    if (lo == hi) {
      absl::StrAppend(&between, lo, tail);
      continue;
    }
    std::vector<std::string> next;
    for (const std::string& prefix : done) {
      for (int64_t v = lo; v <= hi; ++v) next.push_back(absl::StrCat(prefix, between, v));
    }
    done = std::move(next);
    between = std::string(tail);
  }
  for (std::string& each : done) absl::StrAppend(&each, between);
  room.paths -= static_cast<int64_t>(done.size());
  room.bytes -= static_cast<int64_t>(done.size() * path.size());
  if (room.paths < 0) return Bad(entry, TooMany());
  if (room.bytes < 0) return Bad(entry, TooLong());
  return done;
}

// "attention" of "attention:layers.0.attention"; "" where none is named.
absl::StatusOr<absl::string_view> TakeRegion(absl::string_view entry, absl::string_view& names) {
  const size_t colon = names.find(':');
  if (colon == absl::string_view::npos) return absl::string_view();
  const absl::string_view name = absl::StripAsciiWhitespace(names.substr(0, colon));
  bool word = !name.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(name[0]));
  for (const char c : name) {
    word = word && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-');
  }
  if (!word) {
    return Bad(entry, absl::StrCat("\"", name,
                                   "\" before ':' is no name of a region (letters, digits, _ and "
                                   "-); distances are for the option reorder"));
  }
  names = absl::StripAsciiWhitespace(names.substr(colon + 1));
  return name;
}

absl::StatusOr<int32_t> TakeDistance(absl::string_view entry, absl::string_view& names) {
  const size_t colon = names.rfind(':');
  if (colon == absl::string_view::npos) return -1;
  int32_t distance = -1;
  if (!ParseNumber(names.substr(colon + 1), distance)) {
    return Bad(entry, "a distance is a decimal number, as in layers.3:2");
  }
  names = names.substr(0, colon);
  return distance;
}

absl::Status ParseOne(absl::string_view text, bool allow_distances, Room& room,
                      std::vector<Entry>& entries) {
  if (text.empty()) return Bad(text, "is empty");
  if (FindControl(text) != absl::string_view::npos) return Bad(text, "has a control character");
  absl::string_view names = text, region;
  int32_t distance = -1;
  if (allow_distances) {
    ASSIGN_OR_RETURN(distance, TakeDistance(text, names));
  } else {
    ASSIGN_OR_RETURN(region, TakeRegion(text, names));
  }
  const bool one = !region.empty();
  const std::vector<absl::string_view> parts = absl::StrSplit(names, '+');
  Entry all{std::string(one ? region : names), {}, distance, one};
  for (const absl::string_view part : parts) {
    const absl::string_view path = absl::StripAsciiWhitespace(part);
    if (!one && parts.size() > 1 &&
        (path.find('[') != absl::string_view::npos || HasWildcard(path))) {
      return Bad(text,
                 "'+' together with a range or \"*\" is ambiguous: name the modules one by one, or "
                 "give all of it one name, as in middle:layers.[1-2]+norm");
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> expanded, ExpandRanges(text, path, room));
    for (const std::string& each : expanded) {
      RETURN_IF_ERROR(CheckComponents(text, each));
      all.paths.push_back(each);
    }
  }
  if (one || parts.size() > 1) {
    entries.push_back(std::move(all));
    return absl::OkStatus();
  }
  for (const std::string& each : all.paths) entries.push_back({each, {each}, distance, false});
  return absl::OkStatus();
}

absl::Status CheckDistinct(const std::vector<Entry>& entries) {
  absl::flat_hash_set<absl::string_view> seen, regions;
  for (const Entry& entry : entries) {
    if (entry.region && !regions.insert(entry.name).second) {
      return Bad(entry.name, "two regions have this name");
    }
    for (const std::string& path : entry.paths) {
      if (!seen.insert(path).second) {
        return Bad(entry.name, absl::StrCat("\"", Printable(path), "\" is named twice"));
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

// What a path with "*" stands for, in order of first use.
std::vector<std::string> MatchesOf(absl::string_view path,
                                   absl::Span<const absl::string_view> labels) {
  const std::vector<absl::string_view> pattern = absl::StrSplit(path, '.');
  absl::flat_hash_set<absl::string_view> seen;
  std::vector<std::string> matches;
  for (const absl::string_view label : labels) {
    const absl::string_view match = Match(pattern, label);
    if (!match.empty() && seen.insert(match).second) matches.emplace_back(match);
  }
  return matches;
}

}  // namespace

bool ParseNumber(absl::string_view text, int32_t& value) {
  if (text.empty() || text.size() > 9) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return absl::SimpleAtoi(text, &value);
}

bool Holds(absl::string_view prefix, absl::string_view path) {
  return path.size() >= prefix.size() && path.substr(0, prefix.size()) == prefix &&
         (path.size() == prefix.size() || path[prefix.size()] == '.');
}

absl::StatusOr<std::vector<Entry>> ParseEntries(absl::string_view text, bool allow_distances) {
  std::vector<Entry> entries;
  Room room;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    RETURN_IF_ERROR(ParseOne(absl::StripAsciiWhitespace(part), allow_distances, room, entries));
  }
  RETURN_IF_ERROR(CheckDistinct(entries));
  return entries;
}

absl::StatusOr<std::vector<Entry>> ExpandWildcards(std::vector<Entry> entries,
                                                   absl::Span<const absl::string_view> labels) {
  std::vector<Entry> out;
  int64_t paths = 0, looks = 0;
  for (Entry& entry : entries) {
    std::vector<std::string> expanded;
    bool wild = false;
    for (const std::string& path : entry.paths) {
      std::vector<std::string> matches;
      if (HasWildcard(path)) {
        wild = true;
        looks += static_cast<int64_t>(labels.size());
        if (looks > kMaxLabelsSeen) return Bad(entry.name, "\"*\" stands in too many entries");
        matches = MatchesOf(path, labels);
      }
      if (matches.empty()) matches = {path};
      paths += static_cast<int64_t>(matches.size());
      if (paths > kMaxEntries) return Bad(entry.name, TooMany());
      for (std::string& match : matches) expanded.push_back(std::move(match));
    }
    if (entry.region || !wild) {
      entry.paths = std::move(expanded);
      out.push_back(std::move(entry));
      continue;
    }
    for (const std::string& path : expanded) out.push_back({path, {path}, entry.distance, false});
  }
  RETURN_IF_ERROR(CheckDistinct(out));
  return out;
}

}  // namespace bucketd
