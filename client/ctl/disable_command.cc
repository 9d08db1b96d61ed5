#include <string>

#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"

namespace bucketd::ctl {
namespace {

struct DisableArgs {
  ServerArgs server;
  std::string why;
  bool enables = false;
};

std::string SwitchedText(const v1::SetPlanningResponse& done) {
  const v1::PlanningState& now = done.planning();
  std::string text = now.enabled()
                         ? "planning is on: new generations of jobs get plans"
                         : "planning is off: new generations of jobs stay unplanned, calls "
                           "without a job are refused";
  if (now.persisted()) {
    text += "; servers that share the store follow within two seconds";
  } else if (now.not_stored().empty()) {
    text += "; a restart of the server forgets this";
  } else {
    absl::StrAppend(&text,
                    "\nnot in the store yet, so that a restart or another server of that store "
                    "does not know it; it is tried again each second: ",
                    now.not_stored());
  }
  return text + "\n";
}

int Run(const DisableArgs& args) {
  v1::SetPlanningRequest request;
  request.set_enabled(args.enables);
  request.set_why(args.why);
  return ShowCall(args.server, AdminOf(args.server).SetPlanning(request), SwitchedText);
}

}  // namespace

void AddDisableCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<DisableArgs>(
      "disable", "Switch planning off: new generations of jobs then run unplanned", Run);
  AddServerArgs(command, args.server);
  command.AddOption("--why", args.why, "what every trainer logs and the status page says")
      .Required();
  command.Footer(
      "The kill switch. Jobs that run keep their plans until they restart; calls without a job "
      "are\n"
      "refused (PLANNING_DISABLED). It holds at once and survives a restart of the server; where "
      "the\n"
      "store cannot be written that is said, and tried again. Back on: bucketctl enable.\n"
      "  bucketctl disable --why 'INC-1234: loss spikes with plans of 2.3'");
}

void AddEnableCommand(const Command& app) {
  const auto [command, args] =
      app.AddCommand<DisableArgs>("enable", "Switch planning on again", Run);
  args.enables = true;
  AddServerArgs(command, args.server);
  command.AddOption("--why", args.why, "what the status page says");
  command.Footer(
      "Jobs that run unplanned go on so until they restart.\n"
      "  bucketctl enable --why 'INC-1234: it was the learning rate'");
}

}  // namespace bucketd::ctl
