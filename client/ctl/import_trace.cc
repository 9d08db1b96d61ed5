// bucketctl costs import-trace: profiler traces to a cost profile, or to samples for a server.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cost_client.h"
#include "client/ctl/command.h"
#include "client/ctl/kernel_rows.h"
#include "client/ctl/server_args.h"
#include "client/render/table.h"

#include "passes/base/status_macros.h"
#include "passes/cost/measured_fit.h"
#include "passes/cost/trace_join.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"
#include "passes/io/torch_trace.h"

namespace bucketd::ctl {
namespace {

struct ImportTraceArgs {
  ServerArgs server;
  std::vector<std::string> traces, links, kernels;
  std::string profile = kDefaultProfile, out, name, reporter, job;
  bool report = false, partial = false;
  int32_t ranks_per_node = 0;
};

using Observations = std::vector<const JoinedCollective*>;

// What the traces say, and what becomes of the base profile by it.
struct Imported {
  TraceJoin join;
  std::map<LinkClass, Observations> by_class;
  ProfileFit fit;
  KernelRows kernels;
};

struct Reported {
  uint64_t accepted = 0, refused = 0;
  std::string first_refusal;
};

JoinOptions OptionsFrom(const ImportTraceArgs& args) {
  JoinOptions options;
  options.partial = args.partial;
  options.ranks_per_node = args.ranks_per_node;
  for (const std::string& text : args.links) {
    const size_t equals = text.find('=');
    const bool named = equals != std::string::npos;
    options.link_classes[named ? text.substr(0, equals) : ""] =
        named ? text.substr(equals + 1) : text;
  }
  return options;
}

absl::StatusOr<TraceJoin> ReadAndJoin(const ImportTraceArgs& args) {
  std::vector<RankTrace> traces;
  for (const std::string& path : args.traces) {
    ASSIGN_OR_RETURN(RankTrace trace, ReadTorchTraceFile(path));
    traces.push_back(std::move(trace));
  }
  ASSIGN_OR_RETURN(TraceJoin join, JoinTraces(traces, OptionsFrom(args)));
  if (!join.observations.empty() || !args.kernels.empty()) return join;
  const auto line = [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "\n  ", entry.second, "  ", entry.first);
  };
  return absl::FailedPreconditionError(absl::StrCat(
      "no collective that could be used",
      join.dropped.empty() ? "" : "; dropped:", absl::StrJoin(join.dropped, "", line)));
}

// Whoever brings traces has seen them: a file is fitted as far as they say, and each communicator
// has a vote. What a server makes of samples stays within its own limits.
FitOptions WithoutLimits() {
  FitOptions options;
  options.quorum = 1;
  options.quorum_factor = 1e9;
  options.min_move = 0.0;
  return options;
}

absl::StatusOr<Imported> Fit(TraceJoin join, const CostProfile& base, const ImportTraceArgs& args) {
  Imported imported;
  imported.join = std::move(join);
  std::vector<ClassSamples> classes;
  for (const JoinedCollective& seen : imported.join.observations) {
    imported.by_class[seen.of].push_back(&seen);
  }
  for (const auto& [of, observations] : imported.by_class) {
    ClassSamples& samples = classes.emplace_back();
    samples.of = of;
    for (const JoinedCollective* seen : observations) {
      samples.samples.push_back(
          {seen->bytes, seen->picoseconds, seen->launches, seen->communicator});
    }
  }
  imported.fit = FitProfile(base, classes, WithoutLimits());
  CostProfile& profile = imported.fit.profile;
  profile.name = args.name.empty() ? absl::StrCat(base.name, "_traced") : args.name;
  profile.version = 1;
  profile.about = absl::StrCat(base.name, ", links by ", args.traces.size(), " traces with ",
                               imported.join.observations.size(), " collectives");
  if (!args.kernels.empty()) {
    ASSIGN_OR_RETURN(imported.kernels, AddKernelRows(args.kernels, profile));
    absl::StrAppend(&profile.about, ", ", imported.kernels.signatures, " measured kernels");
  }
  RETURN_IF_ERROR(profile.Validate());
  return imported;
}

absl::StatusOr<CostProfile> BaseProfile(client::CostClient& costs, const ImportTraceArgs& args) {
  if (!args.report) return FindProfile(args.profile);
  ASSIGN_OR_RETURN(const v1::GetProfileResponse got, costs.Get(args.profile));
  return ProfileFromProto(got.profile());
}

// One stream a reporter: the host of a communicator's first rank, unless the user names one.
absl::StatusOr<Reported> SendSamples(client::CostClient& costs, const TraceJoin& join,
                                     const ImportTraceArgs& args) {
  std::map<std::string, std::vector<v1::CollectiveSample>> by_reporter;
  for (const JoinedCollective& seen : join.observations) {
    CollectiveSample sample;
    sample.of = seen.of;
    sample.mesh_dim = seen.mesh_dim;
    sample.launches = seen.launches;
    sample.bytes = seen.bytes;
    sample.picoseconds = seen.picoseconds;
    const std::string& reporter = args.reporter.empty() ? seen.host : args.reporter;
    SampleToProto(sample, by_reporter[reporter].emplace_back());
  }
  Reported reported;
  for (const auto& [reporter, samples] : by_reporter) {
    if (reporter.empty()) {
      return absl::InvalidArgumentError("the traces name no host; --reporter says who measured");
    }
    v1::ReportHeader header;
    header.set_profile(args.profile);
    header.set_reporter(reporter);
    header.set_job(args.job);
    header.set_tool("bucketctl costs import-trace");
    ASSIGN_OR_RETURN(const v1::ReportCostsResponse done, costs.Report(header, samples));
    reported.accepted += static_cast<uint64_t>(done.accepted());
    reported.refused += static_cast<uint64_t>(done.refused());
    if (reported.first_refusal.empty()) reported.first_refusal = done.first_refusal();
  }
  return reported;
}

// What a person wants to know of a class.
struct Summary {
  size_t communicators = 0;
  int32_t fewest_ranks = 0, most_ranks = 0;
  // Last arrival to last departure over the shortest span, the median; 0 if unknown.
  double doubt = 0.0;
};

Summary Summarise(const Observations& observations) {
  Summary summary;
  std::map<std::string, int32_t> communicators;
  std::vector<double> doubts;
  summary.fewest_ranks = observations.front()->ranks;
  for (const JoinedCollective* seen : observations) {
    communicators.emplace(seen->communicator, seen->ranks);
    summary.fewest_ranks = std::min(summary.fewest_ranks, seen->ranks);
    summary.most_ranks = std::max(summary.most_ranks, seen->ranks);
    if (seen->from_last_ps == 0) continue;
    doubts.push_back(static_cast<double>(seen->from_last_ps) /
                     static_cast<double>(seen->picoseconds));
  }
  summary.communicators = communicators.size();
  if (doubts.empty()) return summary;
  std::sort(doubts.begin(), doubts.end());
  summary.doubt = doubts[(doubts.size() - 1) / 2];
  return summary;
}

// A figure of a fitted class, of which the traces' sizes may show nothing.
std::string Figure(double value, double before, bool shown) {
  if (shown) return absl::StrFormat("%.4g", value);
  return value == before ? "not measured (base)" : absl::StrFormat("%.4g (base, scaled)", value);
}

std::string TextOf(const Imported& imported) {
  Table table("lrrrrrrrr", {"class", "collectives", "outliers", "groups", "ranks", "latency us",
                            "busbw GB/s", "error", "at most"});
  for (const ClassFit& fit : imported.fit.classes) {
    const Observations& observations = imported.by_class.at(fit.of);
    const Summary summary = Summarise(observations);
    const MeasuredLink* row = fit.moved ? FindLink(imported.fit.profile.links, fit.of) : nullptr;
    table.AddRow({Describe(fit.of), absl::StrCat(observations.size()), absl::StrCat(fit.outliers),
                  absl::StrCat(summary.communicators),
                  summary.fewest_ranks == summary.most_ranks
                      ? absl::StrCat(summary.most_ranks)
                      : absl::StrCat(summary.fewest_ranks, "-", summary.most_ranks),
                  row == nullptr
                      ? "too few"
                      : Figure(fit.after.alpha_us, fit.before.alpha_us, fit.latency_shown),
                  row == nullptr ? "-"
                                 : Figure(fit.after.busbw_bytes_per_s * 1e-9,
                                          fit.before.busbw_bytes_per_s * 1e-9, fit.bandwidth_shown),
                  row == nullptr ? "-" : absl::StrFormat("%.0f %%", row->error * 100),
                  summary.doubt == 0.0 ? "-" : absl::StrFormat("x %.2f", summary.doubt)});
  }
  std::string text = imported.fit.classes.empty() ? "" : table.Text();
  if (imported.kernels.nodes > 0) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", imported.kernels.signatures, " kernels of ",
                    imported.kernels.nodes, " measured nodes\n");
  }
  if (!imported.join.dropped.empty()) absl::StrAppend(&text, "\nnot used:\n");
  for (const auto& [why, count] : imported.join.dropped) {
    absl::StrAppendFormat(&text, "%6d  %s\n", count, why);
  }
  return text;
}

std::string JsonOf(const Imported& imported, size_t traces, const Reported* reported) {
  const auto six_digits = [](double value) { return Json::Number(absl::StrFormat("%.6g", value)); };
  const auto one = [&](const ClassFit& fit) {
    const Observations& observations = imported.by_class.at(fit.of);
    const Summary summary = Summarise(observations);
    return Json::Object({{"class", Describe(fit.of)},
                         {"collectives", observations.size()},
                         {"outliers", fit.outliers},
                         {"groups", summary.communicators},
                         {"ranks", summary.fewest_ranks},
                         {"fitted", fit.moved},
                         {"alpha_us", six_digits(fit.after.alpha_us)},
                         {"alpha_measured", fit.latency_shown},
                         {"busbw_bytes_per_s", six_digits(fit.after.busbw_bytes_per_s)},
                         {"busbw_measured", fit.bandwidth_shown},
                         {"at_most", summary.doubt == 0.0 ? Json() : six_digits(summary.doubt)}});
  };
  const auto drop = [](const auto& entry) {
    return Json::Object({{"why", entry.first}, {"count", entry.second}});
  };
  Json object = Json::Object({{"traces", traces},
                              {"collectives", imported.join.observations.size()},
                              {"classes", Json::List(imported.fit.classes, one)},
                              {"not_used", Json::List(imported.join.dropped, drop)}});
  if (imported.kernels.nodes > 0) {
    object.Set("kernels", Json::Object({{"measured_nodes", imported.kernels.nodes},
                                        {"rows", imported.kernels.signatures}}));
  }
  if (reported != nullptr) {
    object.Set("reported",
               Json::Object({{"accepted", reported->accepted}, {"refused", reported->refused}}));
  }
  return object.Text();
}

int Run(const ImportTraceArgs& args) {
  absl::StatusOr<TraceJoin> join = ReadAndJoin(args);
  if (!join.ok()) return Report(join.status());
  client::CostClient costs(args.server.address, args.server.tls);
  const absl::StatusOr<CostProfile> base = BaseProfile(costs, args);
  if (!base.ok()) return args.report ? ReportCall(base.status()) : Report(base.status());
  const absl::StatusOr<Imported> imported = Fit(*std::move(join), *base, args);
  if (!imported.ok()) return Report(imported.status());
  // First: what a server took cannot be asked back.
  if (!args.out.empty()) {
    const absl::Status written = WriteFile(args.out, ProfileToJson(imported->fit.profile));
    if (!written.ok()) return Report(written);
  }
  Reported reported;
  if (args.report) {
    absl::StatusOr<Reported> sent = SendSamples(costs, imported->join, args);
    if (!sent.ok()) return ReportCall(sent.status());
    reported = *std::move(sent);
  }
  if (args.server.json) {
    Print(JsonOf(*imported, args.traces.size(), args.report ? &reported : nullptr));
    return kDone;
  }
  std::string text = TextOf(*imported);
  if (args.report) {
    absl::StrAppend(&text, "\ntook ", reported.accepted, " samples of profile ", args.profile,
                    ", refused ", reported.refused,
                    reported.refused == 0 ? "" : absl::StrCat(" (", reported.first_refusal, ")"),
                    "\n");
  }
  if (!args.out.empty()) {
    absl::StrAppend(&text, "\n", args.out, ": profile ", imported->fit.profile.name, "\n");
  }
  Print(ForTerminal(text));
  return kDone;
}

}  // namespace

void AddImportTraceCommand(const Command& costs) {
  const auto [command, args] = costs.AddCommand<ImportTraceArgs>(
      "import-trace", "Traces of torch.profiler, one a rank, to a profile file or to samples", Run);
  AddServerArgs(command, args.server);
  command.AddOption("traces", args.traces, "what export_chrome_trace wrote, JSON or gzip")
      .Required()
      .TypeName("TRACE");
  command
      .AddOption("--profile", args.profile,
                 "where the numbers come from that no trace shows; with --report the server's "
                 "profile that the samples are for")
      .ShowDefault();
  command
      .AddOption("--kernels", args.kernels,
                 "a graph with measured kernels, of python -m bucketd.kernel_times: what they took "
                 "becomes rows of the profile, which price such kernels in the graphs of any job; "
                 "once a graph")
      .TypeName("GRAPH")
      .OneValueEach();
  command.AddOption("--out", args.out, "write the fitted profile").TypeName("FILE");
  command.AddOption("--name", args.name, "of the fitted profile [PROFILE_traced]");
  command.AddFlag("--report", args.report, "hand the samples in at the server");
  command.AddOption("--reporter", args.reporter, "who measured [the host of a group's first rank]");
  command.AddOption("--job", args.job, "whose traces they are, for the record");
  command.AddFlag("--partial", args.partial,
                  "also groups of which some ranks have no trace: their durations may include "
                  "waiting for those");
  command
      .AddOption("--ranks-per-node", args.ranks_per_node,
                 "rank r is on node r / N [by the traces' host names]")
      .InRange(1, 1 << 20)
      .TypeName("N");
  command
      .AddOption("--link-class", args.links, "what the links are called, of one dimension or all")
      .TypeName("[DIM=]NAME")
      .OneValueEach();
  command.Footer(
      "A collective counts once, however many ranks show it, and took as long as the shortest of "
      "their spans: those who came early show waiting. \"at most\": how much longer it was from "
      "the last arrival to the last departure, where all ranks are on one host.\n"
      "  bucketctl costs import-trace --out ours.json rank*.json.gz && bucketctl plan GRAPH "
      "--profile ours.json\n"
      "What kernels take is read from a trace by: python -m bucketd.kernel_times --help\n"
      "  bucketctl costs import-trace rank*.json.gz --kernels fw.measured.json.gz --out ours.json "
      "&& bucketctl costs import ours.json");
}

}  // namespace bucketd::ctl
