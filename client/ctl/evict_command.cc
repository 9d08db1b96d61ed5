#include <string>

#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"

namespace bucketd::ctl {
namespace {

struct EvictArgs {
  ServerArgs server;
  SelectionArgs selection;
  bool all = false;
};

std::string EvictedText(const v1::EvictPlansResponse& evicted) {
  std::string text = absl::StrCat("evicted ", evicted.from_memory(), " plans from memory and ",
                                  evicted.from_store(), " from the store");
  if (evicted.held() > 0) {
    absl::StrAppend(&text, "; ", evicted.held(), " are pinned by jobs and stay in the store");
  }
  return text + "\n";
}

int Run(const EvictArgs& args) {
  const absl::StatusOr<v1::PlanSelection> selection = SelectionOf(args.selection);
  if (!selection.ok()) return ReportCall(selection.status());
  if (args.all == (selection->ByteSizeLong() > 0)) {
    return ReportCall(absl::InvalidArgumentError(
        args.all ? "--all and a selection: say one of the two"
                 : "which plans? --key, --graph, --tenant, --not-used-for, or --all"));
  }
  v1::EvictPlansRequest request;
  *request.mutable_selection() = *selection;
  request.set_all(args.all);
  return ShowCall(args.server, AdminOf(args.server).EvictPlans(request), EvictedText);
}

}  // namespace

void AddEvictCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<EvictArgs>(
      "evict", "Take plans away from its memory and store; they are computed again", Run);
  AddServerArgs(command, args.server);
  AddSelectionArgs(command, args.selection);
  command.AddFlag("--all", args.all, "all of them");
  command.Footer(
      "Several conditions must all hold; bucketctl plans with the same ones shows what would go.\n"
      "What a job has pinned stays in the store: see bucketctl pin --release.\n"
      "  bucketctl evict --not-used-for 30d\n"
      "  bucketctl evict --key 3f9a01bc");
}

}  // namespace bucketd::ctl
