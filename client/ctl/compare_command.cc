#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/ctl/command.h"
#include "client/ctl/plan_flags.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/modes/pass_registry.h"
#include "passes/pass/compute_run.h"
#include "passes/pass/option_table.h"
#include "passes/planner.h"

namespace bucketd::ctl {
namespace {

constexpr size_t kMaxRows = 200;

struct CompareArgs {
  PlanFlags flags;
  std::vector<std::string> sweeps;
  bool json = false;
};

struct Sweep {
  std::string name;
  std::vector<std::string> values;
};

// One way to plan, and what came of it.
struct Row {
  std::vector<std::pair<std::string, std::string>> swept;  // option, value
  PlanOptions options;
  absl::StatusOr<Plan> plan;
  double planning_ms = 0.0;
};

absl::StatusOr<Sweep> ParseSweep(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.second.empty()) {
    return absl::OutOfRangeError(absl::StrCat(
        "--sweep ", text, ": expected option=value,value,... (; between values that hold commas)"));
  }
  Sweep sweep{parts.first, {}};
  std::replace(sweep.name.begin(), sweep.name.end(), '-', '_');
  if (FindOption(sweep.name) == nullptr) {
    PlanOptions unused;
    return AsUsage(SetOption(unused, sweep.name, ""));
  }
  sweep.values = absl::StrSplit(parts.second, absl::StrContains(parts.second, ';') ? ';' : ',');
  return sweep;
}

bool Sweeps(const std::vector<Sweep>& sweeps, absl::string_view option) {
  return std::any_of(sweeps.begin(), sweeps.end(),
                     [&](const Sweep& sweep) { return sweep.name == option; });
}

// Those that rows begin with: one where a sweep or --mode names modes; else those that read the
// swept options, else all. Manual only where its entries are given.
std::vector<std::string> ModesFor(const PlanOptions& options, const CompareArgs& args,
                                  const std::vector<Sweep>& sweeps) {
  if (Sweeps(sweeps, "mode")) return {options.mode};
  for (const auto& [name, text] : args.flags.set) {
    if (name == "mode") return {text};
  }
  const bool has_entries = !options.buckets.empty() || Sweeps(sweeps, "buckets");
  std::vector<std::string> modes;
  for (const ModeInfo& mode : AllModes()) {
    if (mode.name == "none" || (mode.name == "manual" && !has_entries)) continue;
    const bool reads = std::all_of(sweeps.begin(), sweeps.end(), [&](const Sweep& sweep) {
      const absl::string_view group = FindOption(sweep.name)->group;
      return group == "every mode" || absl::StrContains(group, mode.name);
    });
    if (reads) modes.emplace_back(mode.name);
  }
  return modes;
}

absl::StatusOr<std::vector<Row>> Rows(const CompareArgs& args) {
  ASSIGN_OR_RETURN(const PlanOptions base, OptionsFrom(args.flags));
  std::vector<Sweep> sweeps;
  for (const std::string& text : args.sweeps) {
    ASSIGN_OR_RETURN(sweeps.emplace_back(), ParseSweep(text));
  }
  std::vector<Row> rows;
  for (const std::string& mode : ModesFor(base, args, sweeps)) {
    PlanOptions& options = rows.emplace_back().options;
    options = base;
    options.mode = mode;
    if (mode != "manual" && !Sweeps(sweeps, "mode")) options.buckets.clear();
  }
  for (const Sweep& sweep : sweeps) {
    std::vector<Row> wider;
    for (const Row& row : rows) {
      for (const std::string& value : sweep.values) {
        Row& next = wider.emplace_back(row);
        next.swept.emplace_back(sweep.name, value);
        RETURN_IF_ERROR(AsUsage(SetOption(next.options, sweep.name, value)));
        if (sweep.name == "mode" && value != "manual") next.options.buckets.clear();
      }
    }
    rows = std::move(wider);
    if (rows.size() > kMaxRows) {
      return absl::OutOfRangeError(
          absl::StrCat("--sweep: ", rows.size(), " plans to make; at most ", kMaxRows, " at once"));
    }
  }
  if (rows.empty()) return absl::OutOfRangeError("--sweep: no mode reads all of these options");
  for (const Row& row : rows) RETURN_IF_ERROR(AsUsage(row.options.Validate()));
  return rows;
}

void MakePlanOf(const Input& input, Row& row) {
  const auto begin = std::chrono::steady_clock::now();
  row.plan = PlanHere(input, row.options);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  row.planning_ms = took.count();
}

std::string Label(const Row& row) {
  std::string label = row.options.mode;
  for (const auto& [option, value] : row.swept) {
    if (option != "mode") absl::StrAppend(&label, " ", option, "=", value);
  }
  return label;
}

// The fastest plan that is made and not slower than program order; null if there is none.
const Row* Best(const std::vector<Row>& rows) {
  const Row* best = nullptr;
  for (const Row& row : rows) {
    if (!row.plan.ok()) continue;
    const int64_t total = row.plan->prediction.total_ps;
    if (total > row.plan->program_order.total_ps) continue;
    if (best == nullptr || total < best->plan->prediction.total_ps) best = &row;
  }
  return best;
}

int64_t ComputeRun(const Graph& graph, const Plan& plan) {
  return MaxComputeBetweenReduceScatters(graph, plan.buckets, plan.order);
}

std::vector<std::string> Cells(absl::string_view mark, std::string label, const Prediction& now,
                               const Prediction& before, int64_t bound, int64_t buckets) {
  return {std::string(mark),
          std::move(label),
          Duration(now.total_ps),
          Change(now.total_ps, before.total_ps),
          absl::StrFormat("%.3f", Ratio(now.total_ps, bound)),
          Duration(now.exposed_ps),
          Duration(now.copies_ps),
          Mib(now.peak_bytes),
          Change(now.peak_bytes, before.peak_bytes),
          absl::StrCat(now.collectives),
          absl::StrCat(buckets)};
}

void PrintTable(const Input& input, const std::vector<Row>& rows, const Prediction& before,
                int64_t bound) {
  Table table("llrrrrrrrrrrr",
              {"", "plan", "step time", "change", "x bound", "exposed", "copies", "peak memory",
               "change", "collectives", "buckets", "compute run", "planned in"});
  const Graph& graph = input.captured.graph;
  std::vector<std::string> untouched = Cells("", "program order", before, before, bound, 0);
  untouched.push_back(absl::StrCat(ComputeRun(graph, ProgramOrder(graph))));
  table.AddRow(std::move(untouched));
  const Row* best = Best(rows);
  std::string refused;
  for (const Row& row : rows) {
    if (!row.plan.ok()) {
      table.AddRow({"", Label(row), "refused"});
      absl::StrAppend(&refused, Label(row), ": ", row.plan.status().message(), "\n");
      continue;
    }
    std::vector<std::string> cells =
        Cells(&row == best ? "*" : "", Label(row), row.plan->prediction, before, bound,
              static_cast<int64_t>(row.plan->buckets.size()));
    cells.push_back(absl::StrCat(ComputeRun(graph, *row.plan)));
    cells.push_back(absl::StrFormat("%.1f ms", row.planning_ms));
    table.AddRow(std::move(cells));
  }
  const std::string text = absl::StrCat(
      graph.name(), ": ", WithThousands(graph.size()), " nodes, ", graph.collectives().size(),
      " collectives, cost profile ", input.costs.profile_id(), ", lower bound ", Duration(bound),
      "\n\n", table.Text(),
      best != nullptr ? "* the fastest\n" : "no plan is faster than program order\n",
      "compute run: the longest run of compute nodes without the start of a reduce-scatter\n");
  Print(ForTerminal(text));
  std::fputs(ForTerminal(refused).c_str(), stderr);
}

Json RowJson(const Input& input, const Row& row, bool best) {
  Json swept = Json::Object({});
  for (const auto& [option, value] : row.swept) swept.Set(option, value);
  Json object =
      Json::Object({{"plan", Label(row)},
                    {"mode", row.options.mode},
                    {"swept", std::move(swept)},
                    {"planning_ms", Json::Number(absl::StrFormat("%.3f", row.planning_ms))},
                    {"fastest", best}});
  if (!row.plan.ok()) return object.Set("refused", row.plan.status().message());
  return object.Set("buckets", row.plan->buckets.size())
      .Set("compute_run", ComputeRun(input.captured.graph, *row.plan))
      .Merge(FiguresJson(input, *row.plan));
}

void PrintJson(const Input& input, const std::vector<Row>& rows, int64_t bound) {
  const Graph& graph = input.captured.graph;
  const Row* best = Best(rows);
  const Json object = Json::Object({{"graph", graph.name()},
                                    {"digest", ToHex(input.digest)},
                                    {"nodes", graph.size()},
                                    {"cost_profile", input.costs.profile_id()},
                                    {"lower_bound_us", Json::Us(bound)},
                                    {"program_order", FiguresJson(input, ProgramOrder(graph))},
                                    {"plans", Json::List(rows, [&](const Row& row) {
                                       return RowJson(input, row, &row == best);
                                     })}});
  Print(object.Text());
}

absl::Status Run(const CompareArgs& args) {
  ASSIGN_OR_RETURN(std::vector<Row> rows, Rows(args));
  ASSIGN_OR_RETURN(const Input input, Load(args.flags.graph, args.flags.costs));
  const bool tells = rows.size() > 8 && isatty(STDERR_FILENO) != 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (tells) std::fprintf(stderr, "\rplan %zu of %zu", i + 1, rows.size());
    MakePlanOf(input, rows[i]);
  }
  if (tells) std::fputs("\n", stderr);
  const Graph& graph = input.captured.graph;
  const int64_t bound = LowerBoundPs(graph, input.costs);
  if (args.json) {
    PrintJson(input, rows, bound);
  } else {
    PrintTable(input, rows, Simulate(graph, ProgramOrder(graph), input.costs).prediction, bound);
  }
  return absl::OkStatus();
}

}  // namespace

void AddCompareCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<CompareArgs>(
      "compare", "Plan a captured graph in every mode and lay them side by side", Run);
  AddPlanFlags(command, args.flags, "each; manual where --buckets says its entries");
  AddCostsFlag(command, args.flags.costs.of);
  command
      .AddOption("--sweep", args.sweeps,
                 "one plan for each value, by the options' names below; several sweeps multiply")
      .TypeName("OPTION=A,B,C")
      .OneValueEach();
  AddJsonFlag(command, args.json);
  command.Footer(
      "Example: every mode as PyTorch's passes are compared, sums in any order:\n"
      "  bucketctl compare llama3_8b_fsdp8.bw.json.gz --numerics free\n"
      "Example: how far apart members of a bucket may stand:\n"
      "  bucketctl compare llama3_8b_fsdp8.bw.json.gz --mode greedy "
      "--sweep max_topo_span=none,1500,500,100");
}

}  // namespace bucketd::ctl
