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
#include "passes/ir/normalize.h"
#include "passes/pass/options.h"
#include "passes/plan/plan.h"
#include "passes/sim/simulator.h"

namespace bucketd::ctl {

inline constexpr char kDefaultProfile[] = "h100_nvlink";

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
void AddAdviseCommand(const Command& app);
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
void AddAuditCommand(const Command& app);
// One of `costs`' own.
void AddImportTraceCommand(const Command& costs);

// By whose costs.
struct CostFlags {
  std::string profile = kDefaultProfile;
  std::string of = "file";  // "file": what it states, scaled by the profile; or "profile"
};

// NOT_FOUND: --profile names none.
absl::StatusOr<CostProfile> ProfileOf(const CostFlags& costs);

// A captured graph and what planning it needs.
struct Input {
  CapturedGraph captured;
  NormalizedGraph normalized;  // what is planned, here and by a server
  Costs costs;                 // of the captured graph
  Costs normalized_costs;
  std::string profile;  // its name
  Digest digest{};      // of the normalised graph
};
// NOT_FOUND: no such file or profile. A file that states no costs gets the profile's.
absl::StatusOr<Input> Load(const std::string& graph_path, const CostFlags& costs);

// What Load() makes of the graph that it read; `source` is for messages.
absl::StatusOr<Input> InputOf(CapturedGraph captured, const CostProfile& profile,
                              const std::string& source);

// Plans as a server does: the normalised graph, under its costs.
absl::StatusOr<Plan> PlanHere(const Input& input, const PlanOptions& options);
// A plan for the normalised graph in the ids of the file, with the figures of its graph.
absl::StatusOr<Plan> ForFile(const Input& input, Plan plan);
// A plan in the file's ids, with the figures of the file's graph under the input's costs.
Plan WithFigures(const Input& input, Plan plan);
// Says on stderr where the input's costs are not those that made the plan.
void NoteOtherCosts(const Input& input, const Plan& plan);

// The plan in a file, checked. An empty path gives program order.
absl::StatusOr<Plan> LoadPlan(const Input& input, const std::string& path);
// Whether the plan, which was read from there, was made for this graph, and is legal for it.
absl::Status CheckPlan(const Input& input, const std::string& path, const Plan& plan);

// The referee's figures of a run of the file's graph, by its names.
Json FiguresJson(const Input& input, const Plan& plan);

// A list of what the planner has to say about the plan.
Json DiagnosticsJson(const Plan& plan);

// To stdout.
void Print(const std::string& text);

// What many subcommands take: GRAPH, --profile, --costs, --json.
void AddGraphArgument(const Command& command, std::string& graph);
void AddProfileFlag(const Command& command, std::string& profile);
Flag AddCostsFlag(const Command& command, std::string& of);
void AddJsonFlag(const Command& command, bool& json);

}  // namespace bucketd::ctl
