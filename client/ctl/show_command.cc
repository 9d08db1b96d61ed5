#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"
#include "client/render/plan_report.h"

#include "passes/base/status_macros.h"
#include "passes/io/plan_file.h"

namespace bucketd::ctl {
namespace {

struct ShowArgs {
  std::string plan;
};

std::vector<BucketLine> Lines(const PlanFile& file) {
  std::vector<BucketLine> lines;
  for (size_t k = 0; k < file.plan.buckets.size(); ++k) {
    lines.push_back(LineOf(file.plan.buckets[k], file.stated[k].kind, file.stated[k].mesh_dim));
  }
  return lines;
}

absl::Status Run(const ShowArgs& args) {
  ASSIGN_OR_RETURN(const PlanFile file, ReadPlanFile(args.plan));
  const Plan& plan = file.plan;
  const std::string text =
      absl::StrCat("graph ", ToHex(plan.graph_digest), ", ", plan.node_count, " nodes, planner ",
                   plan.planner, "\n", HowMade(plan, plan.cost_profile), "\n",
                   BucketTable(Lines(file)), "\n", SummaryTable(plan), DiagnosticLines(plan));
  Print(ForTerminal(text));
  return absl::OkStatus();
}

}  // namespace

void AddShowCommand(const Command& app) {
  const auto [command, args] =
      app.AddCommand<ShowArgs>("show", "Show a plan file, JSON or binary, without its graph", Run);
  command.AddOption("plan", args.plan, "plan file").Required().TypeName("PLAN");
  command.Footer("Example:\n  bucketctl show plan.json");
}

}  // namespace bucketd::ctl
