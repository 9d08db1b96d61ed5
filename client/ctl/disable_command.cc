#include <cstdio>
#include <memory>
#include <string>

#include "client/admin_client.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"

#include "passes/io/message_json.h"

namespace bucketd::ctl {
namespace {

struct Args {
  ServerArgs server;
  std::string why;
  bool undo = false;
};

int Run(const Args& args) {
  if (!args.undo && args.why.empty()) {
    return ReportCall(absl::InvalidArgumentError("--why is needed: every trainer will log it"));
  }
  v1::SetPlanningRequest request;
  request.set_enabled(args.undo);
  request.set_why(args.why);
  const auto done = client::AdminClient(args.server.address).SetPlanning(request);
  if (!done.ok()) return ReportCall(done.status());
  const v1::PlanningState& now = done->planning();
  std::string text = now.enabled()
                         ? "planning is on: new generations of jobs get plans"
                         : "planning is off: new generations of jobs stay unplanned, calls "
                           "without a job are refused";
  if (!now.enabled() && !now.persisted()) text += "; a restart of the server forgets this";
  std::fputs((args.server.json ? MessageJson(*done) : text + "\n").c_str(), stdout);
  return kDone;
}

}  // namespace

void AddDisableCommand(CLI::App& app, int& exit) {
  auto args = std::make_shared<Args>();
  CLI::App* command = app.add_subcommand(
      "disable", "Switch planning off, or on again: new generations of jobs then run unplanned");
  AddServerArgs(*command, args->server);
  command->add_option("--why", args->why, "what trainers and the status page say");
  command->add_flag("--undo", args->undo, "switch planning on again");
  command->footer(
      "Jobs that run keep their plans until they restart. Example:\n"
      "  bucketctl disable --why 'INC-1234: loss spikes with plans of 2.3'\n"
      "  bucketctl disable --undo");
  command->callback([args, &exit] { exit = Run(*args); });
}

}  // namespace bucketd::ctl
