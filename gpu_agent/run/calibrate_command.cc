#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/addresses.h"
#include "client/agent_client.h"
#include "client/cli/tls_flags.h"
#include "client/cost_client.h"

#include "gpu_agent/device/nvml.h"
#include "gpu_agent/device/steady.h"
#include "gpu_agent/run/calibration.h"
#include "gpu_agent/run/command.h"
#include "gpu_agent/run/sweep.h"
#include "passes/base/status_macros.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"

namespace bucketd::agent {
namespace {

struct CalibrateArgs {
  SessionOptions session;
  SweepOptions sweep;
  std::string planner;
  client::ClientTls tls;
  bool promote = false;
  GroupOptions group;  // of several nodes
  std::string profile_out, base, name = "calibrated", link_class, timeout = "60s",
                                 measure_when = "idle";
};

// Prints rows as they come: an out-of-place one is held until its in-place twin is there.
class TablePrinter {
 public:
  TablePrinter(std::string communicator, int ranks)
      : communicator_(std::move(communicator)), ranks_(ranks) {}

  void Add(const CollectiveRow& row) {
    if (row.in_place) {
      Print(TableLine(held_, &row, ranks_));
      return;
    }
    if (row.kind != held_.kind || row.launches != held_.launches) {
      Print(TableTitle(row, communicator_));
    }
    held_ = row;
    if (row.launches > 1) Print(TableLine(row, nullptr, ranks_));
  }

 private:
  static void Print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  const std::string communicator_;
  const int ranks_;
  CollectiveRow held_;
};

absl::StatusOr<CostProfile> BaseOf(const CalibrateArgs& args, const Session& session) {
  if (args.base.empty()) {
    return FindProfile(session.backend() == "nccl" ? "h100_nvlink" : "cpu_loopback");
  }
  absl::StatusOr<CostProfile> base = FindProfile(args.base);
  if (base.ok()) return base;
  return absl::Status(base.status().code(), absl::StrCat("--base: ", base.status().message()));
}

std::string Id(const v1::ProfileVersion& version) {
  return absl::StrCat(version.name(), "@", version.version());
}

// As a new version of the profile's name; one with the same numbers is not made twice. What came of
// it, for people: "calibrated@2, which is latest".
absl::StatusOr<std::string> Deliver(const CalibrateArgs& args, const CostProfile& profile) {
  client::CostClient client(args.planner, args.tls);
  v1::ImportProfileRequest request;
  ProfileToProto(profile, *request.mutable_profile());
  request.set_by(absl::StrCat("bucket-agent on ", HostName()));
  ASSIGN_OR_RETURN(const v1::ImportProfileResponse done, client.Import(request));
  const v1::ProfileVersion& version = done.version();
  std::string said = absl::StrCat(Id(version), done.already_there() ? " is there already" : "");
  if (version.promoted()) return absl::StrCat(said, ", which is latest");
  if (!args.promote) {
    return absl::StrCat(said, "; bucketctl costs promote ", Id(version), " makes it latest");
  }
  ASSIGN_OR_RETURN(const v1::PromoteProfileResponse promoted,
                   client.Promote(version.name(), version.version()));
  return absl::StrCat(said, ", which is latest now, was version ", promoted.before());
}

// The file first: what was measured is not lost with the planner.
absl::Status Keep(const CalibrateArgs& args, const CostProfile& profile) {
  if (!args.profile_out.empty()) {
    RETURN_IF_ERROR(WriteFile(args.profile_out, ProfileToJson(profile)));
    std::fprintf(stderr, "profile: %s\n", args.profile_out.c_str());
  }
  if (args.planner.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> said = Deliver(args, profile);
  if (said.ok()) {
    std::printf("# planner %s: %s\n", args.planner.c_str(), said->c_str());
    return absl::OkStatus();
  }
  const std::string rest = args.profile_out.empty()
                               ? "nothing was kept; --profile-out FILE keeps it"
                               : absl::StrCat("when that is mended: bucketctl costs import ",
                                              args.profile_out, " --server ", args.planner);
  return absl::Status(said.status().code(), absl::StrCat("--planner ", args.planner, ": ",
                                                         said.status().message(), "; ", rest));
}

absl::Status Check(CalibrateArgs& args) {
  if (args.promote && args.planner.empty()) {
    return absl::OutOfRangeError("--promote: there is no --planner to do it");
  }
  if (args.session.nodes > 1 && args.planner.empty()) {
    return absl::OutOfRangeError("--nodes: several meet at a planner, and there is no --planner");
  }
  RETURN_IF_ERROR(CheckEither("--measure-when", args.measure_when, "idle", "always"));
  if (args.sweep.min_bytes > args.sweep.max_bytes) {
    return absl::OutOfRangeError("--min-bytes: is more than --max-bytes");
  }
  if (args.group.name.empty()) args.group.name = absl::StrCat("calibrate/", args.name);
  return ReadDuration("--timeout", args.timeout, absl::Hours(1), args.group.timeout);
}

// Who computes on this machine's GPUs while no rank of ours does yet: in a container processes have
// no names, and ours would count as others. "": nobody, or nobody is asked for. UNAVAILABLE: that
// is not known.
absl::StatusOr<std::string> WhoComputes(const CalibrateArgs& args) {
  const bool asks = args.measure_when == "idle" && args.session.rank < 0;
  if (!asks || args.session.backend == "ring") return "";
  ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open());
  return nvml->Computing();
}

// What GPUs take beside a job's work would be the cost of every job after it.
absl::Status CheckIdle(const Session& session, const absl::StatusOr<std::string>& computing) {
  if (session.backend() != "nccl") return absl::OkStatus();
  if (!computing.ok()) {
    std::fprintf(stderr, "who computes on GPUs is not known: %s\n",
                 std::string(computing.status().message()).c_str());
    return absl::OkStatus();
  }
  if (computing->empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      *computing,
      " computes there: nothing is measured; --measure-when always measures beside it"));
}

struct Measured {
  std::string by;  // the communicator
  SweepResult sweep;
};

absl::StatusOr<Measured> Measure(const CalibrateArgs& args, Session& session,
                                 Communicator& communicator) {
  Measured measured{communicator.ToString(), {}};
  TablePrinter table(measured.by, session.ranks());
  ASSIGN_OR_RETURN(measured.sweep,
                   Sweep(session.device(), communicator, args.sweep, [&](const CollectiveRow& row) {
                     if (session.rank() == 0) table.Add(row);
                   }));
  return measured;
}

// Ranks that measure differently would wait for each other.
std::string WhatIsMeasured(const CalibrateArgs& args, const Session& session) {
  return absl::StrCat(BUCKETD_VERSION, ", ", session.backend(), ", ", args.session.ranks,
                      " a node, ", args.sweep.min_bytes, " to ", args.sweep.max_bytes, " bytes");
}

// What ends a group all of its ranks hear: the first of each node says it.
absl::Status ToldByTheFirst() { return absl::CancelledError(""); }

int Exit(const absl::Status& status) {
  return status == ToldByTheFirst() ? kUnavailable : Report(AsAbsence(status));
}

// A rank whose neighbour hung up does not know why. Whoever does has a moment to say it: the first
// of a node whose process ended, or who was refused something.
absl::Status WhyItEnded(Session& session, Group& group, const absl::Status& own) {
  const SteadyTime until =
      SteadyIn(absl::IsUnavailable(own) ? absl::Milliseconds(300) : absl::ZeroDuration());
  absl::Status lost;
  while (lost.ok() && SteadyNow() < until &&
         !group.PauseUntil(absl::Now() + absl::Milliseconds(20))) {
    lost = session.Lost();
  }
  const absl::string_view why = lost.ok() ? own.message() : lost.message();
  const absl::Status told = group.Ended(std::string(why));
  if (absl::StrContains(told.message(), why) || absl::IsAborted(own)) return told;
  return absl::Status(told.code(), absl::StrCat(told.message(), "; seen here: ", why));
}

// The first of each node, before all ranks: whoever differs is told, whichever rank is late.
absl::Status MeetNodes(const CalibrateArgs& args, const Session& session,
                       client::AgentClient& client) {
  v1::RendezvousRequest request;
  request.set_tenant(args.group.tenant);
  request.set_group(absl::StrCat(args.group.name, "/nodes"));
  request.set_rank(static_cast<uint32_t>(args.session.node));
  request.set_size(static_cast<uint32_t>(args.session.nodes));
  request.set_endpoint("none");
  request.set_agrees(WhatIsMeasured(args, session));
  const absl::Status met =
      client.Rendezvous(request, absl::ToChronoMilliseconds(args.group.timeout)).status();
  if (met.ok()) return met;
  return absl::Status(met.code(), absl::StrCat(met.message(), " (a rank stands for a node here)"));
}

absl::StatusOr<Measured> MeetAndMeasure(const CalibrateArgs& args, Session& session,
                                        client::AgentClient& client) {
  if (session.first_of_node()) RETURN_IF_ERROR(MeetNodes(args, session, client));
  GroupOptions options = args.group;
  // Until the nodes have met there is nobody to be late for.
  if (!session.first_of_node()) options.timeout *= 2;
  options.agrees = WhatIsMeasured(args, session);
  ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, session.Meet(client, options));
  absl::StatusOr<Measured> measured = Measure(args, session, group->communicator());
  if (!measured.ok()) measured = WhyItEnded(session, *group, measured.status());
  client.StopWaiting();  // or the group would watch its epoch for a while yet
  return measured;
}

absl::StatusOr<Measured> MeasureOverNodes(const CalibrateArgs& args, Session& session) {
  client::AgentClient client(args.planner, args.tls);
  absl::StatusOr<Measured> measured = MeetAndMeasure(args, session, client);
  if (measured.ok()) return measured;
  return session.first_of_node() ? measured.status() : ToldByTheFirst();
}

absl::StatusOr<Measured> MeasureHere(const CalibrateArgs& args, Session& session) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator, session.Connect("calibrate"));
  return Measure(args, session, *communicator);
}

absl::Status Run(CalibrateArgs& args, const std::vector<std::string>& arguments) {
  RETURN_IF_ERROR(Check(args));
  const absl::StatusOr<std::string> computing = WhoComputes(args);
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Open(args.session, arguments));
  RETURN_IF_ERROR(CheckIdle(*session, computing));
  const bool first = session->rank() == 0;
  CostProfile base;
  if (first) {
    ASSIGN_OR_RETURN(base, BaseOf(args, *session));
  }
  const bool alone = args.session.nodes == 1;
  ASSIGN_OR_RETURN(const Measured measured,
                   alone ? MeasureHere(args, *session) : MeasureOverNodes(args, *session));
  const SweepResult& sweep = measured.sweep;
  if (session->first_of_node()) RETURN_IF_ERROR(session->Join());
  if (!first) return absl::OkStatus();
  const CalibrationOf of{args.name,
                         absl::StrCat("measured by bucket-agent calibrate: ", measured.by),
                         args.link_class, session->ranks(), args.session.ranks};
  ASSIGN_OR_RETURN(const Calibration calibration, Calibrate(sweep, of, base));
  std::fputs(CopyTable(sweep).c_str(), stdout);
  std::fputs(FitTable(calibration).c_str(), stdout);
  return Keep(args, calibration.profile);
}

void AddNodesFlags(const Command& command, CalibrateArgs& args) {
  constexpr int kMostNodes = 64;
  command
      .AddOption("--nodes", args.session.nodes,
                 "machines that measure together, each with --ranks ranks; wants --interface and "
                 "--planner, where they meet")
      .InRange(1, kMostNodes)
      .ShowDefault();
  command
      .AddOption("--node", args.session.node,
                 "which of them this is; node 0 has the figures and writes the profile")
      .InRange(0, kMostNodes - 1)
      .ShowDefault();
  command.AddOption("--group", args.group.name,
                    "by what name the nodes meet; default: calibrate/ and the profile's");
  command
      .AddOption("--timeout", args.timeout,
                 "with several nodes, how long ranks wait for each other: to come, and in each "
                 "collective")
      .ShowDefault();
}

}  // namespace

void AddCalibrateCommand(const Command& app, const std::vector<std::string>& arguments) {
  auto args = std::make_shared<CalibrateArgs>();
  const Command command = app.AddCommand(
      "calibrate",
      "Measure collectives and copies on this machine: a cost profile, for a file and the planner");
  AddSessionFlags(command, args->session);
  AddNodesFlags(command, *args);
  command.AddOption("--profile-out", args->profile_out, "where the cost profile goes, JSON")
      .TypeName("FILE");
  command
      .AddOption("--planner", args->planner,
                 "bucketd that takes the cost profile too, as a new version of its name")
      .TypeName("ADDRESS")
      .Checked(client::WrongInAddresses);
  client::ClientTls& tls = args->tls;
  AddTlsFlags(command, {tls.ca, tls.certificate, tls.key, tls.token});
  command.AddFlag("--promote", args->promote,
                  "make that version what NAME@latest means; the first one always is");
  command.AddOption("--name,--profile-name", args->name, "the profile's name").ShowDefault();
  command.AddOption(
      "--base", args->base,
      "cost profile for what is not measured here (compute, mostly): a built-in name, "
      "or a JSON file; default: cpu_loopback for the ring, h100_nvlink for NCCL");
  command.AddOption("--link-class", args->link_class,
                    "link class of the mesh dimensions that the figures are for");
  command
      .AddOption("--measure-when", args->measure_when,
                 "idle: with nccl, not where another process computes on a GPU of this machine, "
                 "which ends with 3. Or always")
      .TypeName("idle|always")
      .ShowDefault();
  constexpr int64_t kSmallest = int64_t{4} << 10, kLargest = int64_t{1} << 30;
  command.AddOption("--min-bytes", args->sweep.min_bytes, "smallest message")
      .InRange(kSmallest, kLargest)
      .ShowDefault();
  command.AddOption("--max-bytes", args->sweep.max_bytes, "largest message")
      .InRange(kSmallest, kLargest)
      .ShowDefault();
  command.Footer(
      "Every payload is verified bit by bit. Ranks begin at once and the slowest one counts; "
      "busbw\n"
      "is nccl-tests'. Mesh dimensions that name a link class want figures of that class:\n"
      "--link-class.\n"
      "Example: measure, then plan with what was measured\n"
      "  bucket-agent calibrate --ranks 2 --profile-out here.json\n"
      "  bucketctl plan step.bw.json.gz --profile here.json\n"
      "or let the planner do it, for jobs that name node7@latest (node7 is its first version)\n"
      "  bucket-agent calibrate --ranks 2 --planner planner:9460 --name node7 --promote\n"
      "Over several nodes, whose ranks meet at the planner: on each node the same, with its "
      "number\n"
      "  bucket-agent calibrate --nodes 2 --node 0 --ranks 8 --interface eth0 \\\n"
      "    --planner planner:9460 --name pair");
  command.Does([args, &arguments] { return Exit(Run(*args, arguments)); });
}

}  // namespace bucketd::agent
