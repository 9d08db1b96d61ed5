#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/addresses.h"

#include "gpu_agent/run/calibration.h"
#include "gpu_agent/run/command.h"
#include "gpu_agent/run/delivery.h"
#include "gpu_agent/run/sweep.h"
#include "passes/base/status_macros.h"
#include "passes/io/profile_json.h"

namespace bucketd::agent {
namespace {

struct Args {
  SessionOptions session;
  SweepOptions sweep;
  Delivery delivery;
  std::string profile_out, base, name = "calibrated", link_class;
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

absl::StatusOr<CostProfile> BaseOf(const Args& args, const Session& session) {
  if (args.base.empty()) {
    return FindProfile(session.backend() == "nccl" ? "h100_nvlink" : "cpu_loopback");
  }
  absl::StatusOr<CostProfile> base = FindProfile(args.base);
  if (base.ok()) return base;
  return absl::NotFoundError(absl::StrCat("--base: ", base.status().message()));
}

// The file first: what was measured is not lost with the planner.
absl::Status Keep(const Args& args, const CostProfile& profile) {
  if (!args.profile_out.empty()) {
    RETURN_IF_ERROR(WriteFile(args.profile_out, ProfileToJson(profile)));
    std::fprintf(stderr, "profile: %s\n", args.profile_out.c_str());
  }
  const std::string& planner = args.delivery.planner;
  if (planner.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> said = Deliver(profile, args.delivery);
  if (said.ok()) {
    std::printf("# planner %s: %s\n", planner.c_str(), said->c_str());
    return absl::OkStatus();
  }
  const std::string rest = args.profile_out.empty()
                               ? "nothing was kept; --profile-out FILE keeps it"
                               : absl::StrCat("when that is mended: bucketctl costs import ",
                                              args.profile_out, " --server ", planner);
  return absl::Status(said.status().code(), absl::StrCat("--planner ", planner, ": ",
                                                         said.status().message(), "; ", rest));
}

absl::Status Run(const Args& args, const std::vector<std::string>& arguments) {
  if (args.delivery.promote && args.delivery.planner.empty()) {
    return absl::OutOfRangeError("--promote: there is no --planner to do it");
  }
  if (args.sweep.min_bytes > args.sweep.max_bytes) {
    return absl::OutOfRangeError("--min-bytes: is more than --max-bytes");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Open(args.session, arguments));
  const bool first = session->rank() == 0;
  CostProfile base;
  if (first) {
    ASSIGN_OR_RETURN(base, BaseOf(args, *session));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator, session->Connect("calibrate"));
  const std::string ring = communicator->ToString();
  TablePrinter table(ring, session->ranks());
  ASSIGN_OR_RETURN(const SweepResult sweep,
                   Sweep(session->device(), session->copier(), *communicator, args.sweep,
                         [&](const CollectiveRow& row) {
                           if (first) table.Add(row);
                         }));
  if (!first) return absl::OkStatus();
  RETURN_IF_ERROR(session->Join());
  const CalibrationOf of{args.name, absl::StrCat("measured by bucket-agent calibrate: ", ring),
                         args.link_class, session->ranks()};
  ASSIGN_OR_RETURN(const Calibration calibration, Calibrate(sweep, of, base));
  std::fputs(CopyTable(sweep).c_str(), stdout);
  std::fputs(FitTable(calibration).c_str(), stdout);
  return Keep(args, calibration.profile);
}

}  // namespace

void AddCalibrateCommand(const Command& app, const std::vector<std::string>& arguments) {
  auto args = std::make_shared<Args>();
  const Command command = app.AddCommand(
      "calibrate",
      "Measure collectives and copies on this machine: a cost profile, for a file and the planner");
  AddSessionFlags(command, args->session);
  command.AddOption("--profile-out", args->profile_out, "where the cost profile goes, JSON")
      .TypeName("FILE");
  command
      .AddOption("--planner", args->delivery.planner,
                 "bucketd that takes the cost profile too, as a new version of its name")
      .TypeName("ADDRESS")
      .Checked(client::WrongInAddresses);
  command.AddFlag("--promote", args->delivery.promote,
                  "make that version what NAME@latest means; the first one always is");
  command.AddOption("--name,--profile-name", args->name, "the profile's name").ShowDefault();
  command.AddOption(
      "--base", args->base,
      "cost profile for what is not measured here (compute, mostly): a built-in name, "
      "or a JSON file; default: cpu_loopback for the ring, h100_nvlink for NCCL");
  command.AddOption("--link-class", args->link_class,
                    "link class of the mesh dimensions that the figures are for");
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
      "is nccl-tests'. All ranks are on this machine, also over TCP: what groups of several\n"
      "machines take, their daemons measure (bucket-agent daemon --help). Mesh dimensions that "
      "name\n"
      "a link class want figures of that class: --link-class.\n"
      "Example: measure, then plan with what was measured\n"
      "  bucket-agent calibrate --ranks 2 --profile-out here.json\n"
      "  bucketctl plan step.bw.json.gz --profile here.json\n"
      "or let the planner do it, for jobs that name node7 or node7@latest\n"
      "  bucket-agent calibrate --ranks 2 --planner planner:9460 --name node7 --promote");
  command.Does([args, &arguments] { return Report(Run(*args, arguments)); });
}

}  // namespace bucketd::agent
