#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "client/ctl/command.h"
#include "client/render/timeline_svg.h"

#include "passes/base/status_macros.h"
#include "passes/io/chrome_trace.h"
#include "passes/sim/simulator.h"

namespace bucketd::ctl {
namespace {

struct TraceArgs {
  std::string graph, plan, out;
  CostFlags costs;
};

// The plan, and above it the untouched step that it is to beat.
std::string Picture(const Input& input, const Plan& plan, bool with_program_order) {
  const Graph& graph = input.captured.graph;
  const Plan untouched = ProgramOrder(graph);
  const Simulation before = Simulate(graph, untouched, input.costs, /*with_timeline=*/true);
  const Simulation after = Simulate(graph, plan, input.costs, /*with_timeline=*/true);
  std::vector<TimelinePanel> panels;
  if (with_program_order) panels.push_back({"program order", &untouched, &before});
  panels.push_back({plan.mode, &plan, &after});
  return TimelineSvg(graph, panels);
}

absl::Status Run(const TraceArgs& args) {
  ASSIGN_OR_RETURN(const Input input, Load(args.graph, args.costs));
  ASSIGN_OR_RETURN(Plan plan, LoadPlan(input, args.plan));
  if (args.plan.empty()) plan.mode = "program order";
  if (absl::EndsWith(args.out, ".svg")) {
    RETURN_IF_ERROR(WriteFile(args.out, Picture(input, plan, !args.plan.empty())));
    std::fprintf(stderr, "picture: %s\n", args.out.c_str());
    return absl::OkStatus();
  }
  const std::string trace = ChromeTrace(input.captured.graph, plan, input.costs,
                                        /*with_program_order=*/!args.plan.empty());
  if (args.out == "-") {
    Print(trace);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(WriteFile(args.out, trace));
  std::fprintf(stderr, "trace: %s (open it in ui.perfetto.dev)\n", args.out.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddTraceCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<TraceArgs>(
      "trace", "Write the predicted timeline of a plan, with program order beside it", Run);
  AddGraphArgument(command, args.graph);
  command.AddOption("plan", args.plan, "plan file; without one: program order alone")
      .TypeName("PLAN");
  command
      .AddOption("--out", args.out,
                 "where the trace goes; - is stdout; a name in .svg gets a picture")
      .Required();
  AddProfileFlag(command, args.costs.profile);
  AddCostsFlag(command, args.costs.of);
  command.Footer(
      "Example: then open trace.json in ui.perfetto.dev or chrome://tracing\n"
      "  bucketctl trace llama3_8b_fsdp8.bw.json.gz plan.json --out trace.json");
}

}  // namespace bucketd::ctl
