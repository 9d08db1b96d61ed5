#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/admin_client.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"

#include "passes/base/status_macros.h"
#include "passes/io/message_json.h"

namespace bucketd::ctl {
namespace {

struct Args {
  ServerArgs server;
  std::string tenant;
  std::string graph;
  std::string key;
  std::string not_used_for;
  bool all = false;
  CLI::Option* tenant_option = nullptr;
};

absl::StatusOr<v1::EvictPlansRequest> RequestOf(const Args& args) {
  v1::EvictPlansRequest request;
  v1::PlanSelection& selection = *request.mutable_selection();
  if (args.tenant_option->count() > 0) selection.set_tenant(args.tenant);
  selection.set_graph_digest(args.graph);
  selection.set_key_sha256(args.key);
  if (!args.not_used_for.empty()) {
    int64_t span = 0;
    RETURN_IF_ERROR(ParseSpan(args.not_used_for, span));
    selection.set_not_used_since_ms(NowMs() - span);
  }
  request.set_all(args.all);
  return request;
}

int Run(const Args& args) {
  const auto request = RequestOf(args);
  if (!request.ok()) return ReportCall(request.status());
  const auto evicted = client::AdminClient(args.server.address).EvictPlans(*request);
  if (!evicted.ok()) return ReportCall(evicted.status());
  std::string text = absl::StrCat("evicted ", evicted->from_memory(), " plans from memory and ",
                                  evicted->from_store(), " from the store");
  if (evicted->held() > 0) {
    absl::StrAppend(&text, "; ", evicted->held(), " are pinned by jobs and stay in the store");
  }
  std::fputs((args.server.json ? MessageJson(*evicted) : text + "\n").c_str(), stdout);
  return kDone;
}

}  // namespace

void AddEvictCommand(CLI::App& app, int& exit) {
  auto args = std::make_shared<Args>();
  CLI::App* command = app.add_subcommand(
      "evict", "Take plans away from a running server's memory and store; they are computed again");
  AddServerArgs(*command, args->server);
  command->add_option("--key", args->key,
                      "the plan whose key begins with these hex digits (bucketctl plans)");
  command->add_option("--graph", args->graph,
                      "plans of the graph with this digest (bucketctl digest)");
  args->tenant_option =
      command->add_option("--tenant", args->tenant, "of this tenant; \"\": the default one");
  command
      ->add_option("--not-used-for", args->not_used_for, "that nobody used for so long: 12h, 30d")
      ->type_name("SPAN");
  command->add_flag("--all", args->all, "all of them");
  command->footer(
      "Several conditions must all hold. What a job has pinned stays: see bucketctl pin "
      "--release.");
  command->callback([args, &exit] { exit = Run(*args); });
}

}  // namespace bucketd::ctl
