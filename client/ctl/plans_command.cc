#include <string>

#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"
#include "client/render/table.h"

#include "passes/base/words.h"

namespace bucketd::ctl {
namespace {

struct PlansArgs {
  ServerArgs server;
  SelectionArgs selection;
  int32_t limit = 100;
  bool keys = false;
};

std::string PlansText(const v1::ListPlansResponse& plans) {
  Table table("lllllrrrl",
              {"key", "graph", "tenant", "mode", "cost profile", "size", "made", "used", "where"});
  for (const v1::PlanInfo& plan : plans.plans()) {
    const bool stored = plan.created_ms() != 0;
    table.AddRow({Short(plan.key_sha256()), Short(plan.graph_digest()),
                  plan.tenant().empty() ? "-" : plan.tenant(), plan.mode(), plan.cost_profile(),
                  BytesInWords(plan.bytes()), Ago(plan.created_ms()), Ago(plan.used_ms()),
                  absl::StrCat(plan.in_memory() ? (stored ? "memory, store" : "memory") : "store",
                               plan.held() ? ", pinned" : "")});
  }
  std::string text = table.Text();
  for (const v1::PlanInfo& plan : plans.plans()) {
    if (plan.key().empty()) continue;
    absl::StrAppend(&text, "\n", Short(plan.key_sha256()), "\n", plan.key());
  }
  if (plans.truncated()) absl::StrAppend(&text, "... and more: --limit\n");
  return text;
}

int Run(const PlansArgs& args) {
  const absl::StatusOr<v1::PlanSelection> selection = SelectionOf(args.selection);
  if (!selection.ok()) return ReportCall(selection.status());
  v1::ListPlansRequest request;
  *request.mutable_selection() = *selection;
  request.set_limit(args.limit);
  request.set_with_keys(args.keys);
  return ShowCall(args.server, AdminOf(args.server).ListPlans(request), PlansText);
}

}  // namespace

void AddPlansCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<PlansArgs>(
      "plans", "List the plans that it keeps, the latest used first", Run);
  AddServerArgs(command, args.server);
  AddSelectionArgs(command, args.selection);
  command.AddOption("--limit", args.limit, "at most so many").ShowDefault().TypeName("N");
  command.AddFlag("--keys", args.keys, "with all that a plan depends on, field by field");
  command.Footer(
      "Two launches that should share a plan and do not: compare the keys.\n"
      "  bucketctl plans --graph $(bucketctl digest step.bw.json.gz | cut -d' ' -f1) --keys");
}

}  // namespace bucketd::ctl
