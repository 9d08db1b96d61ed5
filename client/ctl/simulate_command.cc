#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/command.h"
#include "client/render/plan_report.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"

namespace bucketd::ctl {
namespace {

struct SimulateArgs {
  std::string graph, plan;
  CostFlags costs;
  bool json = false;
};

void PrintJson(const Input& input, const Plan& plan) {
  const double over = Ratio(plan.prediction.total_ps, plan.lower_bound_ps);
  const Json object = FiguresJson(input, plan)
                          .Set("lower_bound_us", Json::Us(plan.lower_bound_ps))
                          .Set("over_lower_bound", Json::Number(absl::StrFormat("%.5f", over)));
  Print(object.Text());
}

absl::Status Run(const SimulateArgs& args) {
  ASSIGN_OR_RETURN(const Input input, Load(args.graph, args.costs));
  ASSIGN_OR_RETURN(Plan plan, LoadPlan(input, args.plan));
  const Graph& graph = input.captured.graph;
  plan.prediction = Simulate(graph, plan, input.costs).prediction;
  plan.lower_bound_ps = LowerBoundPs(graph, input.costs);
  if (args.json) {
    PrintJson(input, plan);
    return absl::OkStatus();
  }
  plan.program_order = Simulate(graph, ProgramOrder(graph), input.costs).prediction;
  Print(SummaryTable(plan));
  return absl::OkStatus();
}

}  // namespace

void AddSimulateCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<SimulateArgs>(
      "simulate", "Predict the step under a plan, or in program order without one", Run);
  AddGraphArgument(command, args.graph);
  command.AddOption("plan", args.plan, "plan file, JSON or binary; illegal ones are refused")
      .TypeName("PLAN");
  AddProfileFlag(command, args.costs.profile);
  AddCostsFlag(command, args.costs.of);
  AddJsonFlag(command, args.json);
  command.Footer(
      "Example: what a plan that was made for NVLink does on a slow network:\n"
      "  bucketctl simulate llama3_8b_fsdp8.bw.json.gz plan.json --profile slow_network");
}

}  // namespace bucketd::ctl
