#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/addresses.h"
#include "client/cli/tls_flags.h"
#include "prometheus/registry.h"
#include "spdlog/spdlog.h"
#include <sys/stat.h>

#include "gpu_agent/daemon/agent_metrics.h"
#include "gpu_agent/daemon/daemon.h"
#include "gpu_agent/daemon/flags.h"
#include "gpu_agent/daemon/training.h"
#include "gpu_agent/device/nvml.h"
#include "gpu_agent/run/command.h"
#include "passes/base/status_macros.h"
#include "server/process/log.h"
#include "server/process/ready_file.h"
#include "server/process/side_port.h"
#include "server/process/signals.h"
#include "server/process/steady_waits.h"

namespace bucketd::agent {
namespace {

struct Args {
  DaemonOptions daemon;
  TrainingFlags training_flags;
  TrainingOptions training;
  int gpu = 0;
  int node = -1, nodes = -1;  // instead of rank and size
  std::string backend = "ring", http = "127.0.0.1:9462", probe_every = "60s", probe_when = "idle",
              timeout = "30s", ready_file;
};

std::string PageOf(const DaemonOptions& options, const Daemon::State& state) {
  const std::string rows = absl::StrCat(
      "group    ", options.group.name, "\nrank     ", options.group.rank, " of ",
      options.group.size, "\nplanner  ", options.planner, "\nepoch    ", state.epoch, "\nready    ",
      state.ready ? "yes" : "no", "\nstate    ", state.doing, "\nslowest  rank ", state.slowest,
      ", ", state.straggler_ratio, " of the median\ntrouble  ", state.trouble);
  return absl::StrCat("<!doctype html><title>bucket-agent</title><pre>\n", EscapedHtml(rows),
                      "\n</pre>\n");
}

SidePort::Handlers HandlersOf(const Args& args, const Daemon& daemon) {
  SidePort::Handlers handlers;
  handlers.not_ready = [&daemon] {
    const Daemon::State state = daemon.state();
    return state.ready ? "" : absl::StrCat("not ready: ", state.doing);
  };
  handlers.degraded = [&daemon] { return daemon.state().trouble; };
  handlers.pages.push_back({"/", [&](const std::multimap<std::string, std::string>&) {
                              SidePort::Answer answer;
                              answer.body = PageOf(args.daemon, daemon.state());
                              return answer;
                            }});
  return handlers;
}

// Null where there is no socket for it.
absl::StatusOr<std::unique_ptr<Training>> StartTraining(Args& args, prometheus::Registry& registry,
                                                        ReportMetrics& reports) {
  if (args.training.collector.socket.empty()) return nullptr;
  args.training.planner = args.daemon.planner;
  args.training.tls = args.daemon.tls;
  args.training.profile = args.daemon.profile;
  return Training::Start(args.training, registry, reports);
}

// Whom probes would be in the way of: trainers that report here, and with `nvml` who computes on
// GPUs. Either may be null; both outlive what is returned.
std::function<std::string()> WhoComputes(const Training* training, const Nvml* nvml) {
  return [training, nvml]() -> std::string {
    const int trainers = training == nullptr ? 0 : training->trainers();
    if (trainers > 0) {
      return absl::StrCat(trainers, trainers == 1 ? " trainer reports" : " trainers report",
                          " here");
    }
    if (nvml == nullptr) return "";
    const absl::StatusOr<std::string> computing = nvml->Computing();
    // Whom NVML does not show, probes would be in the way of all the same.
    return computing.ok()
               ? *computing
               : absl::StrCat("who computes is not known: ", computing.status().message());
  };
}

// The backend has its context already, by which NVML has to know this process. Null where nobody is
// to be asked, or where trainers that report are all that can be known; UNAVAILABLE: nothing can.
absl::StatusOr<std::unique_ptr<Nvml>> OpenNvml(const Args& args, const Backend& backend) {
  if (backend.name() != "nccl" || args.probe_when != "idle") return nullptr;
  absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open();
  if (nvml.ok() && (*nvml)->KnowsThisProcess()) return nvml;
  const std::string why =
      nvml.ok() ? "NVML does not list this process by its number; a container has to have the "
                  "host's processes (docker --pid=host, Kubernetes hostPID)"
                : std::string(nvml.status().message());
  if (args.training.collector.socket.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "--probe-when idle: who computes on GPUs is not known: ", why,
        "; without it give --telemetry, to go by trainers that report, or --probe-when always"));
  }
  spdlog::warn("who computes on GPUs is not known, but for trainers that report: {}", why);
  return nullptr;
}

// An agent for each GPU says where it stands, and its rank follows.
absl::Status TakeRank(Args& args) {
  GroupOptions& group = args.daemon.group;
  const int per_node = args.daemon.per_node;
  const bool by_rank = group.rank >= 0 && group.size >= 0,
             by_node = args.node >= 0 && args.nodes >= 0;
  if (by_rank == by_node) {
    return absl::OutOfRangeError("--rank and --size are needed, or --node and --nodes");
  }
  if (by_rank) return absl::OkStatus();
  if (args.gpu >= per_node) {
    return absl::OutOfRangeError(
        absl::StrCat("--gpu: ", args.gpu, "; expected less than --per-node, ", per_node));
  }
  if (args.node >= args.nodes) {
    return absl::OutOfRangeError(
        absl::StrCat("--node: ", args.node, " of ", args.nodes, "; expected less than --nodes"));
  }
  group.rank = args.node * per_node + args.gpu;
  group.size = args.nodes * per_node;
  if (group.size >= 2 && group.size <= 64) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("--nodes: ", group.size, " agents of all nodes; expected 2 to 64"));
}

absl::Status Check(Args& args) {
  RETURN_IF_ERROR(TakeRank(args));
  GroupOptions& group = args.daemon.group;
  RETURN_IF_ERROR(CheckEither("--probe-when", args.probe_when, "idle", "always"));
  RETURN_IF_ERROR(
      ReadDuration("--probe-every", args.probe_every, absl::Hours(24), args.daemon.probe_every));
  RETURN_IF_ERROR(ReadDuration("--timeout", args.timeout, absl::Hours(1), group.timeout));
  RETURN_IF_ERROR(ReadTrainingFlags(args.training_flags, args.training));
  if (group.rank >= group.size) {
    return absl::OutOfRangeError(
        absl::StrCat("--rank: ", group.rank, " of ", group.size, "; expected less than --size"));
  }
  if (group.size % args.daemon.per_node != 0) {
    return absl::OutOfRangeError(absl::StrCat("--per-node: ", args.daemon.per_node,
                                              "; expected a divisor of --size, ", group.size));
  }
  if (group.unix_folder.empty() == group.tcp_interface.empty()) {
    return absl::OutOfRangeError("one of --interface and --unix-folder is needed");
  }
  // One that is there has to be private already: ring_connect.h.
  if (!group.unix_folder.empty()) mkdir(group.unix_folder.c_str(), 0700);
  args.daemon.host = HostName();
  return absl::OkStatus();
}

absl::Status Run(Args& args) {
  RETURN_IF_ERROR(Check(args));
  MakeWaitsSteady();
  ASSIGN_OR_RETURN(const std::unique_ptr<StopSignals> signals, StopSignals::Create());
  RETURN_IF_ERROR(ConfigureLog("bucket-agent", "info", false));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Backend> backend,
      Backend::Open(args.backend, args.gpu, args.gpu + 1, args.daemon.group.tcp_interface));
  spdlog::info("backend {}, on {}", backend->reason(), backend->device().name());
  prometheus::Registry registry;
  SetBuildInfo(registry, BUCKETD_VERSION, backend->name());
  AgentMetrics metrics(registry);
  ReportMetrics reports(registry);
  const GroupOptions& group = args.daemon.group;
  metrics.Member(group.name, group.rank, group.size);
  ASSIGN_OR_RETURN(const std::unique_ptr<Training> training,
                   StartTraining(args, registry, reports));
  ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, OpenNvml(args, *backend));
  if (args.probe_when == "idle") args.daemon.busy = WhoComputes(training.get(), nvml.get());
  Daemon daemon(args.daemon, *backend, metrics, reports);
  ASSIGN_OR_RETURN(const std::unique_ptr<SidePort> side_port,
                   OpenSidePort(args.http, registry, HandlersOf(args, daemon)));
  const std::string http = side_port == nullptr ? "" : side_port->address();
  std::printf("bucket-agent %s, rank %d of %d of %s, side port http://%s\n", BUCKETD_VERSION,
              group.rank, group.size, group.name.c_str(), http.c_str());
  std::fflush(stdout);

  absl::Status ended;
  std::thread worker([&] {
    ended = daemon.Run();
    signals->Ended();
  });
  std::thread announcer([&] {
    if (!daemon.WaitUntilReady() || args.ready_file.empty()) return;
    const absl::Status written = WriteReadyFile(
        args.ready_file, {{"http", http}, {"epoch", static_cast<int64_t>(daemon.state().epoch)}});
    if (!written.ok()) spdlog::error("{}", std::string(written.message()));
  });
  signals->Wait();
  StopSignals::RestoreDefaults();
  daemon.Stop();
  announcer.join();
  worker.join();
  return ended;
}

// Which group this agent is of, and how its ranks reach each other.
void AddGroupFlags(const Command& command, const std::shared_ptr<Args>& args) {
  GroupOptions& group = args->daemon.group;
  command
      .AddOption("--planner", args->daemon.planner,
                 "address of bucketd, or of several: a:9460,b:9460, dns:///planners:9460")
      .Checked(client::WrongInAddresses)
      .Required()
      .TypeName("ADDRESS");
  client::ClientTls& tls = args->daemon.tls;
  AddTlsFlags(command, {tls.ca, tls.certificate, tls.key, tls.token});
  command.AddOption("--group", group.name, "the process group's name").Required();
  command.AddOption("--tenant", group.tenant, "whose group it is");
  group.rank = group.size = -1;
  command.AddOption("--rank", group.rank, "of this agent").InRange(0, 63);
  command.AddOption("--size", group.size, "agents of the group").InRange(2, 64);
  command
      .AddOption("--node", args->node,
                 "instead of --rank: the number of this node, each of which has --per-node agents, "
                 "one for each --gpu")
      .InRange(0, 63)
      .Excludes({"--rank", "--size"});
  command.AddOption("--nodes", args->nodes, "instead of --size: how many nodes")
      .InRange(1, 64)
      .Excludes({"--rank", "--size"});
  command
      .AddOption("--interface", group.tcp_interface,
                 "the only network interface to use, by name or address")
      .TypeName("IF");
  command
      .AddOption("--unix-folder", group.unix_folder,
                 "folder of this user alone, for unix sockets: all agents on one machine")
      .TypeName("DIR");
  command
      .AddOption(kBackendFlag, args->backend,
                 "what moves the bytes: ring, nccl, or auto; all agents of a group have the same")
      .ShowDefault();
  command.AddOption("--gpu", args->gpu, "with nccl, which GPU of this machine: a daemon for each")
      .InRange(0, 63)
      .ShowDefault();
  command
      .AddOption("--per-node", args->daemon.per_node,
                 "with --interface, agents of the group on each node, their ranks in a row")
      .InRange(1, 64)
      .ShowDefault();
}

}  // namespace

void AddDaemonCommand(const Command& app) {
  auto args = std::make_shared<Args>();
  const Command command = app.AddCommand(
      "daemon", "Stay: meet the other nodes' agents, probe what collectives take, report it");
  AddGroupFlags(command, args);
  AddHttpFlag(command, args->http);
  command.AddOption("--profile", args->daemon.profile,
                    "cost profile that predicts, and that rank 0 reports to; without it neither");
  command.AddOption("--link-class", args->daemon.link_class,
                    "link class of the mesh dimension that the group stands for");
  command.AddOption("--probe-every", args->probe_every, "pause between probes").ShowDefault();
  command
      .AddOption("--probe-when", args->probe_when,
                 "idle: not while trainers report to --telemetry or, with nccl, another process "
                 "computes on a GPU of this machine; the group then has no epoch. Or always")
      .TypeName("idle|always")
      .ShowDefault();
  command.AddOption("--timeout", args->timeout, "patience with the others").ShowDefault();
  command.AddOption("--sweep-bytes", args->daemon.sweep_bytes, "largest message")
      .InRange(int64_t{4} << 10, int64_t{1} << 30)
      .ShowDefault();
  AddTrainingFlags(command, args->training_flags);
  command.AddOption("--ready-file", args->ready_file, "written when first ready, JSON")
      .TypeName("FILE");
  command.Footer(
      "When the group has met, collectives of all sizes are measured once and a few again and\n"
      "again, every payload verified. An epoch ends when an agent dies, stops or comes anew; the\n"
      "others then meet again. It runs until SIGTERM or SIGINT. The planner's token admits to the\n"
      "ring; what travels there is clear text. Example:\n"
      "  bucket-agent daemon --planner planner:9460 --group dp --rank 0 --size 2 --interface eth0");
  command.Does([args] { return Report(Run(*args)); });
}

}  // namespace bucketd::agent
