#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/admin_client.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"
#include "client/render/table.h"

#include "passes/base/words.h"
#include "passes/io/message_json.h"

namespace bucketd::ctl {
namespace {

struct Args {
  ServerArgs server;
  std::string tenant;
  std::string graph;
  std::string key;
  int32_t limit = 100;
  bool keys = false;
  CLI::Option* tenant_option = nullptr;
};

std::string PlansText(const v1::ListPlansResponse& plans) {
  using Align = Table::Align;
  Table table({{"key"},
               {"graph"},
               {"tenant"},
               {"mode"},
               {"cost profile"},
               {"size", Align::kRight},
               {"made", Align::kRight},
               {"used", Align::kRight},
               {"where"}});
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

int Run(const Args& args) {
  v1::ListPlansRequest request;
  v1::PlanSelection& selection = *request.mutable_selection();
  if (args.tenant_option->count() > 0) selection.set_tenant(args.tenant);
  selection.set_graph_digest(args.graph);
  selection.set_key_sha256(args.key);
  request.set_limit(args.limit);
  request.set_with_keys(args.keys);
  const auto plans = client::AdminClient(args.server.address).ListPlans(request);
  if (!plans.ok()) return ReportCall(plans.status());
  std::fputs((args.server.json ? MessageJson(*plans) : PlansText(*plans)).c_str(), stdout);
  return kDone;
}

}  // namespace

void AddPlansCommand(CLI::App& app, int& exit) {
  auto args = std::make_shared<Args>();
  CLI::App* command = app.add_subcommand(
      "plans", "List the plans that a running server keeps, the latest used first");
  AddServerArgs(*command, args->server);
  args->tenant_option =
      command->add_option("--tenant", args->tenant, "of this tenant; \"\": the default one");
  command->add_option("--graph", args->graph, "of the graph with this digest (bucketctl digest)");
  command->add_option("--key", args->key, "whose key begins with these hex digits");
  command->add_option("--limit", args->limit, "at most so many")->capture_default_str();
  command->add_flag("--keys", args->keys, "with all that a plan depends on, field by field");
  command->callback([args, &exit] { exit = Run(*args); });
}

}  // namespace bucketd::ctl
