#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/ctl/command.h"
#include "client/ctl/plan_flags.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/ir/canonical.h"
#include "passes/ir/graph_difference.h"
#include "passes/ir/normalize.h"
#include "passes/pass/option_table.h"
#include "passes/plan_key.h"
#include "passes/planner.h"

namespace bucketd::ctl {
namespace {

struct KeyArgs {
  PlanFlags flags;
  std::string other, other_profile;
  std::vector<std::string> other_options;
  bool json = false;
};

// One side: what a request would ask for.
struct Side {
  NormalizedGraph normalized;
  std::string name;
  std::vector<std::pair<std::string, std::string>> fields;
};

absl::StatusOr<Side> Load(const std::string& path, const PlanOptions& options,
                          const std::string& profile_name) {
  ASSIGN_OR_RETURN(const CostProfile profile, ProfileOf({.profile = profile_name}));
  RETURN_IF_ERROR(AsUsage(options.Validate()));
  ASSIGN_OR_RETURN(const CapturedGraph captured, ReadCapturedGraphFile(path));
  ASSIGN_OR_RETURN(NormalizedGraph normalized, Normalize(captured.graph));
  const std::string key = PlanKey("", GraphDigest(normalized.graph), captured.mesh, options,
                                  KeyedProfile(profile), kPlannerVersion);
  Side side{std::move(normalized), path, {}};
  for (const absl::string_view line : absl::StrSplit(key, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> field = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (!field.second.empty()) side.fields.push_back(field);
  }
  return side;
}

struct Difference {
  std::string field, first, second;
};

// Fields line by line: both sides list the options in one order; meshes and parameter orders may be
// of several lengths, so what is left over on one side is compared with nothing.
std::vector<Difference> Differences(const Side& a, const Side& b) {
  std::vector<Difference> found;
  size_t i = 0, j = 0;
  while (i < a.fields.size() || j < b.fields.size()) {
    const bool in_a = i < a.fields.size(), in_b = j < b.fields.size();
    if (in_a && in_b && a.fields[i].first == b.fields[j].first) {
      if (a.fields[i].second != b.fields[j].second) {
        found.push_back({a.fields[i].first, a.fields[i].second, b.fields[j].second});
      }
      ++i, ++j;
      continue;
    }
    const auto comes_later = [&](const std::string& name, const Side& side, size_t from) {
      while (from < side.fields.size() && side.fields[from].first != name) ++from;
      return from < side.fields.size();
    };
    if (in_a && (!in_b || !comes_later(a.fields[i].first, b, j))) {
      found.push_back({a.fields[i].first, a.fields[i].second, ""});
      ++i;
    } else {
      found.push_back({b.fields[j].first, "", b.fields[j].second});
      ++j;
    }
  }
  return found;
}

std::string NodeText(const Graph& graph, const GraphDifference& difference) {
  return difference.node < graph.size() ? graph.Describe(difference.node) : "no such node";
}

std::string GraphText(const Side& a, const Side& b) {
  const GraphDifference d = FirstDifference(a.normalized.graph, b.normalized.graph);
  if (d.node == kNoNode) return "";
  return absl::StrCat("the graphs first differ at node ", d.node, " of their normalised forms, in ",
                      d.field, ":\n  A: ", d.first, "    ", NodeText(a.normalized.graph, d),
                      "\n  B: ", d.second, "    ", NodeText(b.normalized.graph, d), "\n");
}

std::string JsonText(const Side& a, const Side& b, const std::vector<Difference>& differences) {
  const GraphDifference d = FirstDifference(a.normalized.graph, b.normalized.graph);
  const auto field = [](const Difference& difference) {
    return Json::Object(
        {{"field", difference.field}, {"a", difference.first}, {"b", difference.second}});
  };
  const Json node =
      d.node == kNoNode
          ? Json()
          : Json::Object({{"node", d.node}, {"field", d.field}, {"a", d.first}, {"b", d.second}});
  return Json::Object({{"equal", differences.empty()},
                       {"fields", Json::List(differences, field)},
                       {"first_difference", node}})
      .Text();
}

absl::Status PrintOne(const Side& side, bool json) {
  std::string text;
  if (json) {
    const auto field = [](const auto& pair) {
      return Json::List(std::vector<std::string>{pair.first, pair.second});
    };
    text = Json::Object({{"fields", Json::List(side.fields, field)}}).Text();
  } else {
    Table table("ll", {"field of the key", "value"});
    for (const auto& [name, value] : side.fields) table.AddRow({name, value});
    text = table.Text();
  }
  Print(ForTerminal(text));
  return absl::OkStatus();
}

absl::Status Run(const KeyArgs& args) {
  ASSIGN_OR_RETURN(const PlanOptions options, OptionsFrom(args.flags));
  ASSIGN_OR_RETURN(const Side a, Load(args.flags.graph, options, args.flags.costs.profile));
  if (args.other.empty() && args.other_profile.empty() && args.other_options.empty()) {
    return PrintOne(a, args.json);
  }
  PlanOptions other_options = options;
  for (const std::string& text : args.other_options) {
    std::pair<std::string, std::string> option = absl::StrSplit(text, absl::MaxSplits('=', 1));
    std::replace(option.first.begin(), option.first.end(), '-', '_');  // as flags are written
    RETURN_IF_ERROR(AsUsage(SetOption(other_options, option.first, option.second)));
  }
  ASSIGN_OR_RETURN(
      const Side b,
      Load(args.other.empty() ? args.flags.graph : args.other, other_options,
           args.other_profile.empty() ? args.flags.costs.profile : args.other_profile));
  const std::vector<Difference> differences = Differences(a, b);
  if (args.json) {
    Print(JsonText(a, b, differences));
    return absl::OkStatus();
  }
  if (differences.empty()) {
    Print("the keys are equal: one plan serves both\n");
    return absl::OkStatus();
  }
  Table table("lll", {"field of the key", "A", "B"});
  for (const Difference& d : differences) table.AddRow({d.field, d.first, d.second});
  Print(ForTerminal(
      absl::StrCat("A: ", a.name, "\nB: ", b.name, "\n\n", table.Text(), GraphText(a, b))));
  return absl::OkStatus();
}

}  // namespace

void AddKeyCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<KeyArgs>(
      "key", "Show what a plan depends on, or why two requests differ", Run);
  AddPlanFlags(command, args.flags);
  command.AddOption("other", args.other, "another captured graph: B").TypeName("GRAPH");
  command.AddOption("--b", args.other_options, "an option that is another one for B, by its name")
      .TypeName("OPTION=VALUE")
      .OneValueEach();
  command.AddOption("--b-profile", args.other_profile, "cost profile of B");
  AddJsonFlag(command, args.json);
  command.Footer(
      "Example: why two ranks do not share a plan, down to the first node that differs:\n"
      "  bucketctl key rank0.bw.json.gz rank3.bw.json.gz\n"
      "Example: does an option matter to the cache?\n"
      "  bucketctl key step.bw.json.gz --b max_topo_span=800");
}

}  // namespace bucketd::ctl
