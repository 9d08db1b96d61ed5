#include <cstdio>
#include <memory>
#include <string>

#include "client/addresses.h"
#include "client/cli/command_line.h"
#include "client/cli/tls_flags.h"
#include "prometheus/registry.h"

#include "gpu_agent/daemon/agent_metrics.h"
#include "gpu_agent/daemon/flags.h"
#include "gpu_agent/daemon/training.h"
#include "passes/base/status_macros.h"
#include "server/process/log.h"
#include "server/process/ready_file.h"
#include "server/process/side_port.h"
#include "server/process/signals.h"

namespace bucketd::agent {
namespace {

struct Args {
  TrainingFlags flags;
  TrainingOptions training;
  std::string http = "127.0.0.1:9462", ready_file;
};

absl::Status Run(Args& args) {
  RETURN_IF_ERROR(ReadTrainingFlags(args.flags, args.training));
  ASSIGN_OR_RETURN(const std::unique_ptr<StopSignals> signals, StopSignals::Create());
  RETURN_IF_ERROR(ConfigureLog("bucket-agent", "info", false));
  prometheus::Registry registry;
  SetBuildInfo(registry, BUCKETD_VERSION, "none");
  ReportMetrics reports(registry);
  ASSIGN_OR_RETURN(const std::unique_ptr<Training> training,
                   Training::Start(args.training, registry, reports));
  SidePort::Handlers handlers;
  handlers.not_ready = handlers.degraded = [] { return std::string(); };
  ASSIGN_OR_RETURN(const std::unique_ptr<SidePort> side_port,
                   OpenSidePort(args.http, registry, std::move(handlers)));
  const std::string http = side_port == nullptr ? "" : side_port->address();
  std::printf("bucket-agent %s, trainers at %s, side port http://%s\n", BUCKETD_VERSION,
              args.flags.socket.c_str(), http.c_str());
  std::fflush(stdout);
  if (!args.ready_file.empty()) {
    RETURN_IF_ERROR(
        WriteReadyFile(args.ready_file, {{"http", http}, {"telemetry", args.flags.socket}}));
  }
  signals->Wait();
  StopSignals::RestoreDefaults();
  return absl::OkStatus();
}

}  // namespace

void AddWatchCommand(const Command& app) {
  auto args = std::make_shared<Args>();
  const Command command = app.AddCommand(
      "watch", "Stay, beside trainers, and measure nothing: pass on what their buckets took");
  AddTrainingFlags(command, args->flags).Required();
  command
      .AddOption("--planner", args->training.planner,
                 "address of bucketd, or of several with commas between, to report to")
      .Checked(client::WrongInAddresses)
      .TypeName("ADDRESS");
  client::ClientTls& tls = args->training.tls;
  AddTlsFlags(command, {tls.ca, tls.certificate, tls.key, tls.token});
  command.AddOption("--profile", args->training.profile,
                    "cost profile to report to; without it nothing is reported to the planner");
  AddHttpFlag(command, args->http);
  command.AddOption("--ready-file", args->ready_file, "written when ready, JSON").TypeName("FILE");
  command.Footer(
      "Trainers find the socket by agent= of the Python client, or BUCKETD_AGENT. Metrics are on\n"
      "the side port; the planner gets what collectives took as cost samples. It runs until "
      "SIGTERM\n"
      "or SIGINT, and trainers do not notice when it ends. Example:\n"
      "  bucket-agent watch --telemetry /run/bucket-agent/trainers --planner planner:9460 \\\n"
      "      --profile site");
  command.Does([args] { return Report(Run(*args)); });
}

}  // namespace bucketd::agent
