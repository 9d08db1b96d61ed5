#include "passes/pass/units/units.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/index.h"

namespace bucketd {
namespace {

constexpr size_t kMaxListed = 50;

// Calls f with every leading run of components that an entry can name, shortest first, until it
// returns true.
template <typename F>
void ForPrefixes(absl::string_view path, F f) {
  size_t at = 0;
  for (int32_t i = 0; i < kMaxComponents && at < path.size(); ++i) {
    const size_t end = std::min(path.find('.', at), path.size());
    if (f(path.substr(0, end))) return;
    at = end + 1;
  }
}

bool BackwardOnly(const PassContext& context) {
  return !context.directions.empty() &&
         std::all_of(context.directions.begin(), context.directions.end(),
                     [](Direction d) { return d == Direction::kBackward; });
}

// Every module and parameter name of the graph, with all their leading runs.
absl::flat_hash_set<absl::string_view> KnownPaths(const Graph& graph) {
  absl::flat_hash_set<absl::string_view> known, whole;
  const auto add = [&](absl::string_view path) {
    if (path.empty() || !whole.insert(path).second) return;
    ForPrefixes(path, [&](absl::string_view prefix) {
      known.insert(prefix);
      return false;
    });
  };
  for (NodeId n = 0; n < graph.size(); ++n) {
    add(graph.module(n));
    if (graph.kind(n) == NodeKind::kPlaceholder) add(graph.parameter(n));
  }
  for (const OutputSlot& slot : graph.output_slots()) add(graph.string(slot.parameter));
  for (const Collective& c : graph.collectives()) add(graph.string(c.parameter));
  return known;
}

// "layers" has 0, 1, 2, ...: what could have been meant by a path that is not there.
std::string Neighbours(const absl::flat_hash_set<absl::string_view>& known,
                       absl::string_view path) {
  absl::string_view parent;
  ForPrefixes(path, [&](absl::string_view prefix) {
    if (!known.contains(prefix)) return true;
    parent = prefix;
    return false;
  });
  std::vector<absl::string_view> there;
  for (const absl::string_view one : known) {
    const size_t dot = one.rfind('.');
    const absl::string_view owner = dot == absl::string_view::npos ? "" : one.substr(0, dot);
    if (owner == parent) there.push_back(one);
  }
  std::sort(there.begin(), there.end());
  const size_t count = there.size();
  if (count > 12) there.resize(12);
  return absl::StrCat(absl::StrJoin(there, ", "), count > 12 ? ", ..." : "");
}

std::string DescribeCollective(const PassContext& context, CollectiveId c) {
  const Graph& graph = context.graph;
  const Collective& collective = graph.collective(c);
  const absl::string_view parameter = context.tags[c].parameter;
  const absl::string_view module = graph.module(collective.start);
  return absl::StrCat(Name(collective.kind), " of ",
                      parameter.empty() ? absl::string_view("an unnamed parameter") : parameter,
                      " (", graph.Describe(collective.start), ", module ",
                      module.empty() ? absl::string_view("unknown") : module, ", ",
                      collective.bytes, " bytes)");
}

Diagnostic Uncovered(const PassContext& context, const std::vector<CollectiveId>& uncovered) {
  Diagnostic diagnostic;
  diagnostic.code = "uncovered-collective";
  std::vector<std::string> lines;
  for (const CollectiveId c : uncovered) {
    diagnostic.nodes.push_back(context.graph.collective(c).start);
    if (lines.size() < kMaxListed) lines.push_back(DescribeCollective(context, c));
  }
  diagnostic.text = absl::StrCat(
      uncovered.size(), " parameter collectives are in no entry: ", absl::StrJoin(lines, "; "),
      uncovered.size() > kMaxListed ? "; ..." : "");
  return diagnostic;
}

// Paths of entries that hold a collective.
absl::flat_hash_set<absl::string_view> MatchedPaths(const PassContext& context) {
  absl::flat_hash_set<absl::string_view> named, matched;
  for (const Unit& unit : context.units) named.insert(unit.paths.begin(), unit.paths.end());
  for (const Unit& unit : context.units) {
    for (const CollectiveId c : unit.collectives) {
      ForPrefixes(Label(context, c), [&](absl::string_view prefix) {
        const auto it = named.find(prefix);
        if (it != named.end()) matched.insert(*it);
        return it != named.end();
      });
    }
  }
  return matched;
}

std::vector<Diagnostic> CheckEntries(const PassContext& context) {
  std::vector<Diagnostic> found;
  const absl::flat_hash_set<absl::string_view> matched = MatchedPaths(context);
  absl::flat_hash_set<absl::string_view> known;
  for (const Unit& unit : context.units) {
    bool any = false;
    for (const std::string& path : unit.paths) {
      if (matched.contains(path)) continue;
      if (known.empty()) known = KnownPaths(context.graph);
      any = any || known.contains(path);
      if (known.contains(path) || found.size() >= kMaxListed) continue;
      found.push_back({"unknown-entry",
                       absl::StrCat("entry ", unit.name, ": the graph has no module or parameter ",
                                    path, "; near it: ", Neighbours(known, path)),
                       {}});
    }
    if (any && unit.collectives.empty() && found.size() < kMaxListed) {
      found.push_back({"entry-without-collective",
                       absl::StrCat("entry ", unit.name, " holds no parameter collective"),
                       {}});
    }
  }
  return found;
}

}  // namespace

absl::string_view Label(const PassContext& context, CollectiveId c) {
  const absl::string_view parameter = context.tags[c].parameter;
  return parameter.empty() ? context.graph.module(context.graph.collective(c).start) : parameter;
}

std::vector<LabelUse> LabelsInOrder(const PassContext& context) {
  std::vector<LabelUse> uses;
  absl::flat_hash_map<absl::string_view, size_t> index;
  const bool backward = BackwardOnly(context);
  for (CollectiveId c = 0; c < static_cast<CollectiveId>(context.tags.of.size()); ++c) {
    if (context.tags[c].tag == Tag::kNone) continue;
    const absl::string_view label = Label(context, c);
    if (label.empty()) continue;
    const int64_t start = context.graph.collective(c).start;
    const auto [it, added] = index.emplace(label, uses.size());
    if (added) uses.push_back({label, start, {}});
    LabelUse& use = uses[it->second];
    if (backward) use.first_use = -start;
    use.collectives.push_back(c);
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const LabelUse& a, const LabelUse& b) { return a.first_use < b.first_use; });
  return uses;
}

absl::Status MatchEntries(const std::vector<Entry>& entries, PassContext& context) {
  absl::flat_hash_map<absl::string_view, size_t> unit_of;
  context.units.clear();
  context.launches.clear();
  for (const Entry& entry : entries) {
    for (const std::string& path : entry.paths) unit_of.emplace(path, context.units.size());
    context.units.push_back({entry.name, entry.paths, {}});
  }
  for (const Entry& entry : entries) {
    for (const std::string& path : entry.paths) {
      absl::string_view outer;
      ForPrefixes(path, [&](absl::string_view prefix) {
        if (prefix.size() < path.size() && unit_of.contains(prefix)) outer = prefix;
        return !outer.empty();
      });
      if (outer.empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat("entry \"", entry.name, "\" lies inside of \"",
                                                     outer,
                                                     "\", which is an entry, too: each "
                                                     "collective can be in one entry only"));
    }
  }
  for (CollectiveId c = 0; c < static_cast<CollectiveId>(context.tags.of.size()); ++c) {
    if (context.tags[c].tag == Tag::kNone) continue;
    ForPrefixes(Label(context, c), [&](absl::string_view prefix) {
      const auto it = unit_of.find(prefix);
      if (it == unit_of.end()) return false;
      context.units[it->second].collectives.push_back(c);
      return true;
    });
  }
  return absl::OkStatus();
}

absl::Status CheckCoverage(const PassContext& context, std::vector<Diagnostic>& diagnostics) {
  std::vector<bool> covered(context.tags.of.size());
  for (const Unit& unit : context.units) {
    for (const CollectiveId c : unit.collectives) covered[Index(c)] = true;
  }
  std::vector<CollectiveId> uncovered;
  for (CollectiveId c = 0; c < static_cast<CollectiveId>(covered.size()); ++c) {
    if (context.tags[c].tag != Tag::kNone && !covered[Index(c)]) uncovered.push_back(c);
  }
  std::vector<Diagnostic> found = CheckEntries(context);
  if (!uncovered.empty()) found.push_back(Uncovered(context, uncovered));
  if (context.options.strict_coverage && !found.empty()) {
    std::vector<absl::string_view> texts;
    for (const Diagnostic& diagnostic : found) texts.push_back(diagnostic.text);
    return absl::FailedPreconditionError(
        absl::StrCat("strict coverage: ", absl::StrJoin(texts, "; ")));
  }
  for (Diagnostic& diagnostic : found) diagnostics.push_back(std::move(diagnostic));
  return absl::OkStatus();
}

}  // namespace bucketd
