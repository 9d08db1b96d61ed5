// What bucketctl's subcommands share. Results go to stdout, everything else to stderr.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/cli/flags.h"
#include "client/cli/json.h"

#include "passes/base/digest.h"
#include "passes/cost/costs.h"
#include "passes/io/fx_json.h"
#include "passes/plan/plan.h"
#include "passes/sim/simulator.h"

namespace bucketd::ctl {

// Each adds its subcommand to `app`; when that one is parsed it runs and says how to exit.
void AddPlanCommand(const Command& app);
void AddCompareCommand(const Command& app);
void AddExplainCommand(const Command& app);
void AddSimulateCommand(const Command& app);
void AddTraceCommand(const Command& app);
void AddDigestCommand(const Command& app);
void AddShowCommand(const Command& app);
void AddDiffCommand(const Command& app);
void AddKeyCommand(const Command& app);
void AddStoreCommand(const Command& app);
// Those that talk to a running server.
void AddStatusCommand(const Command& app);
void AddCostsCommand(const Command& app);
void AddPlansCommand(const Command& app);
void AddJobsCommand(const Command& app);
void AddEvictCommand(const Command& app);
void AddPinCommand(const Command& app);
void AddDisableCommand(const Command& app);
void AddEnableCommand(const Command& app);

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

// The referee's figures of a run, by its names.
Json FiguresJson(const Graph& graph, const Plan& plan, const Simulation& simulation);

// A list of what the planner has to say about the plan.
Json DiagnosticsJson(const Plan& plan);

// What many subcommands take: GRAPH, --profile, --json.
void AddGraphArgument(const Command& command, std::string& graph);
void AddProfileFlag(const Command& command, std::string& profile);
void AddJsonFlag(const Command& command, bool& json);

inline constexpr char kDefaultProfile[] = "h100_nvlink";

}  // namespace bucketd::ctl
