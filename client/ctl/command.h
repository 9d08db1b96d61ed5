// What bucketctl's subcommands share. Results go to stdout, everything else to stderr.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command_line.h"

#include "passes/base/digest.h"
#include "passes/cost/costs.h"
#include "passes/io/fx_json.h"
#include "passes/plan/plan.h"
#include "passes/sim/simulator.h"

namespace bucketd::ctl {

// Each adds its subcommand to `app`; when that one is parsed it runs and sets `exit`.
void AddPlanCommand(CLI::App& app, int& exit);
void AddCompareCommand(CLI::App& app, int& exit);
void AddExplainCommand(CLI::App& app, int& exit);
void AddSimulateCommand(CLI::App& app, int& exit);
void AddTraceCommand(CLI::App& app, int& exit);
void AddDigestCommand(CLI::App& app, int& exit);
void AddShowCommand(CLI::App& app, int& exit);
void AddDiffCommand(CLI::App& app, int& exit);
void AddKeyCommand(CLI::App& app, int& exit);
void AddStoreCommand(CLI::App& app, int& exit);
// Those that talk to a running server.
void AddStatusCommand(CLI::App& app, int& exit);
void AddCostsCommand(CLI::App& app, int& exit);
void AddPlansCommand(CLI::App& app, int& exit);
void AddJobsCommand(CLI::App& app, int& exit);
void AddEvictCommand(CLI::App& app, int& exit);
void AddPinCommand(CLI::App& app, int& exit);
void AddDisableCommand(CLI::App& app, int& exit);
void AddEnableCommand(CLI::App& app, int& exit);

// A captured graph and what planning it needs.
struct Input {
  CapturedGraph captured;
  Costs costs;
  Digest digest{};             // of the normalised graph
  int32_t canonical_size = 0;  // its number of nodes
};
// NOT_FOUND: no such file or profile. Costs come from the file where it states them, else from the
// profile's device model.
absl::StatusOr<Input> Load(const std::string& graph_path, const std::string& profile);

// The plan in a file, checked: made for this graph, and legal for it. An empty path gives program
// order.
absl::StatusOr<Plan> LoadPlan(const Input& input, const std::string& path);

// The referee's figures of a run, by its names, as the members of a JSON object (without braces).
std::string FiguresJson(const Graph& graph, const Plan& plan, const Simulation& simulation);

// A list of what the planner has to say about the plan.
std::string DiagnosticsJson(const Plan& plan);

inline constexpr char kDefaultProfile[] = "h100_nvlink";
inline constexpr char kProfileHelp[] =
    "cost profile: h100_nvlink, h100_launch, slow_network, small_batch, cpu_loopback, or a JSON "
    "file";

}  // namespace bucketd::ctl
