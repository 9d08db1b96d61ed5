// bucketctl costs: the cost profiles of a running server.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cost_client.h"
#include "client/ctl/command.h"
#include "client/ctl/costs_diff.h"
#include "client/ctl/server_args.h"
#include "client/render/table.h"

#include "passes/base/read_file.h"
#include "passes/base/status_macros.h"
#include "passes/cost/profile_numbers.h"
#include "passes/io/cost_json.h"
#include "passes/io/message_json.h"
#include "passes/io/profile_json.h"
#include "passes/io/proto_io.h"

namespace bucketd::ctl {
namespace {

struct CostsArgs {
  std::string first, second;
  std::string name;
  std::string by;
};

struct Answer {
  std::string text;
  std::string json;
};

using Action = std::function<absl::StatusOr<Answer>(client::CostClient&, const CostsArgs&)>;

constexpr int64_t kMaxFileBytes = 256 << 20;

std::string Id(const v1::ProfileVersion& v) { return absl::StrCat(v.name(), "@", v.version()); }

std::string OriginName(v1::ProfileOrigin origin) {
  switch (origin) {
    case v1::PROFILE_ORIGIN_BUILT_IN:
      return "built in";
    case v1::PROFILE_ORIGIN_IMPORTED:
      return "imported";
    case v1::PROFILE_ORIGIN_MEASURED:
      return "measured";
    default:
      return "?";
  }
}

absl::StatusOr<CostProfile> Fetch(client::CostClient& costs, const std::string& spec) {
  ASSIGN_OR_RETURN(const v1::GetProfileResponse response, costs.Get(spec));
  return ProfileFromProto(response.profile());
}

// What is wrong with the user's own file exits as it does for commands that ask no server:
// ReportCall takes these codes for a server's.
absl::Status OfFile(const absl::Status& status) {
  if (absl::IsNotFound(status)) return absl::OutOfRangeError(status.message());
  return absl::IsInvalidArgument(status) ? absl::FailedPreconditionError(status.message()) : status;
}

absl::StatusOr<CostProfile> ReadProfile(const std::string& path) {
  absl::StatusOr<CostProfile> profile = FindProfile(path);
  if (!profile.ok()) return OfFile(profile.status());
  return profile;
}

// A file where the text can be no profile's name.
absl::StatusOr<CostProfile> FetchOrRead(client::CostClient& costs, const std::string& text) {
  if (!absl::StrContains(text, '/') && !absl::EndsWith(text, ".json")) return Fetch(costs, text);
  return ReadProfile(text);
}

absl::StatusOr<Answer> List(client::CostClient& costs, const CostsArgs& args) {
  ASSIGN_OR_RETURN(const v1::ListProfilesResponse list, costs.List(args.first));
  Table profiles("llllrl", {"profile", "latest", "origin", "since", "links", "about"});
  for (const v1::ProfileVersion& v : list.profiles()) {
    profiles.AddRow({Id(v), v.promoted() ? "*" : "", OriginName(v.origin()),
                     Ago(v.created_unix_ms()), absl::StrCat(v.links()),
                     v.readable() ? v.about() : "cannot be read any more"});
  }
  Table samples("llrrl", {"samples for", "links", "held", "reporters", "newest"});
  for (const v1::HeldSamples& held : list.samples()) {
    v1::CollectiveSample message = held.of();
    message.set_bytes(1);
    message.set_picoseconds(1'000'000);  // a class alone is no sample
    ASSIGN_OR_RETURN(const CollectiveSample of, SampleFromProto(message));
    samples.AddRow({held.profile(), Describe(of.of), absl::StrCat(held.samples()),
                    absl::StrCat(held.reporters()), Ago(held.newest_unix_ms())});
  }
  return Answer{absl::StrCat(profiles.Text(), list.samples_size() > 0 ? "\n" : "",
                             list.samples_size() > 0 ? samples.Text() : ""),
                MessageJson(list)};
}

absl::StatusOr<Answer> Show(client::CostClient& costs, const CostsArgs& args) {
  ASSIGN_OR_RETURN(const v1::GetProfileResponse got, costs.Get(args.first));
  ASSIGN_OR_RETURN(const CostProfile profile, ProfileFromProto(got.profile()));
  const v1::ProfileVersion& v = got.version();
  std::string text =
      absl::StrCat(Id(v), v.promoted() ? " (latest)" : "", ", ", OriginName(v.origin()),
                   v.by().empty() ? "" : " by ", v.by(), "\n", v.about(), "\n\n");
  Table table("lr", {"number", "value"});
  for (const ProfileNumber& number : ProfileNumbers()) {
    table.AddRow({number.FullName(), absl::StrFormat("%.6g", number.In(profile))});
  }
  absl::StrAppend(&text, table.Text(), profile.links.empty() ? "" : "\n", LinksText(profile));
  if (!profile.kernels.empty()) {
    absl::StrAppend(&text, "\n", profile.kernels.size(), " measured kernels (--json lists them)\n");
  }
  return Answer{text, ProfileToJson(profile)};
}

absl::StatusOr<Answer> Import(client::CostClient& costs, const CostsArgs& args) {
  ASSIGN_OR_RETURN(CostProfile profile, ReadProfile(args.first));
  if (!args.name.empty()) profile.name = args.name;
  v1::ImportProfileRequest request;
  ProfileToProto(profile, *request.mutable_profile());
  request.set_by(args.by);
  ASSIGN_OR_RETURN(const v1::ImportProfileResponse done, costs.Import(request));
  const std::string id = Id(done.version());
  std::string text =
      absl::StrCat(done.already_there() ? "is there already as " : "imported as ", id);
  absl::StrAppend(&text, done.version().promoted() ? ", which is latest\n"
                                                   : absl::StrCat("; bucketctl costs promote ", id,
                                                                  " makes it latest\n"));
  return Answer{text, MessageJson(done)};
}

absl::StatusOr<Answer> SendReport(client::CostClient& costs, const CostsArgs& args) {
  const absl::StatusOr<std::string> text = ReadFile(args.first, kMaxFileBytes);
  if (!text.ok()) return OfFile(text.status());
  absl::StatusOr<CostReport> report = CostReportFromJson(*text);
  if (!report.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(args.first, ": ", report.status().message()));
  }
  v1::ReportHeader header;
  header.set_profile(report->profile);
  header.set_reporter(report->by.reporter);
  header.set_job(report->by.job);
  header.set_tool(report->by.tool);
  header.set_device(report->by.device);
  std::vector<v1::CollectiveSample> samples(report->samples.size());
  for (size_t i = 0; i < samples.size(); ++i) SampleToProto(report->samples[i], samples[i]);
  ASSIGN_OR_RETURN(const v1::ReportCostsResponse done, costs.Report(header, samples));
  std::string answer = absl::StrCat("took ", done.accepted(), " samples of profile ",
                                    report->profile, ", refused ", done.refused());
  if (!done.first_refusal().empty()) absl::StrAppend(&answer, " (", done.first_refusal(), ")");
  return Answer{absl::StrCat(answer, "\n"), MessageJson(done)};
}

absl::StatusOr<Answer> Propose(client::CostClient& costs, const CostsArgs& args) {
  ASSIGN_OR_RETURN(const v1::ProposeProfileResponse done, costs.Propose(args.first));
  if (!done.has_version()) {
    return Answer{"the samples move nothing enough: no new version\n", MessageJson(done)};
  }
  const std::string id = Id(done.version());
  ASSIGN_OR_RETURN(const CostProfile after, Fetch(costs, id));
  std::string text = absl::StrCat(id, ": ", done.version().about(), "\n\n", LinksText(after), "\n");
  int clamped = 0;
  for (const v1::ClassProposal& of : done.classes()) clamped += of.clamped() ? 1 : 0;
  if (clamped > 0) {
    absl::StrAppend(&text, clamped,
                    " classes went as far as one version may; the samples say more\n");
  }
  absl::StrAppend(&text, done.promoted()
                             ? absl::StrCat(id, " is latest now\n")
                             : absl::StrCat("bucketctl costs promote ", id, " makes it latest\n"));
  return Answer{text, MessageJson(done)};
}

absl::StatusOr<Answer> Promote(client::CostClient& costs, const CostsArgs& args) {
  const size_t at = args.first.find('@');
  uint32_t version = 0;
  if (at == std::string::npos || !absl::SimpleAtoi(args.first.substr(at + 1), &version)) {
    return absl::OutOfRangeError(
        absl::StrCat("\"", args.first, "\": expected NAME@VERSION, e.g. h100_nvlink@2"));
  }
  ASSIGN_OR_RETURN(const v1::PromoteProfileResponse done,
                   costs.Promote(args.first.substr(0, at), version));
  return Answer{absl::StrCat(done.version().name(), "@latest is version ", done.version().version(),
                             ", was ", done.before(), "\n"),
                MessageJson(done)};
}

absl::StatusOr<Answer> Rollback(client::CostClient& costs, const CostsArgs& args) {
  ASSIGN_OR_RETURN(const v1::RollbackProfileResponse done, costs.Rollback(args.first));
  return Answer{absl::StrCat(done.version().name(), "@latest is version ", done.version().version(),
                             " again, was ", done.before(), "\n"),
                MessageJson(done)};
}

absl::StatusOr<Answer> Difference(client::CostClient& costs, const CostsArgs& args) {
  ASSIGN_OR_RETURN(const CostProfile a, FetchOrRead(costs, args.first));
  ASSIGN_OR_RETURN(const CostProfile b, FetchOrRead(costs, args.second));
  return Answer{DiffText(a, b), DiffJson(a, b)};
}

// One of `costs`' subcommands; the returned one takes further options.
Command Add(const Command& costs, const std::shared_ptr<CostsArgs>& args, const char* name,
            const char* about, const char* example, Action action) {
  const Command command = costs.AddCommand(name, about);
  command.Footer(example);
  const auto server = std::make_shared<ServerArgs>();
  AddServerArgs(command, *server);
  command.Does([args, server, action = std::move(action)] {
    client::CostClient client(server->address, server->tls);
    const absl::StatusOr<Answer> answer = action(client, *args);
    if (!answer.ok()) return ReportCall(answer.status());
    Print(server->json ? answer->json : ForTerminal(answer->text));
    return int{kDone};
  });
  return command;
}

}  // namespace

void AddCostsCommand(const Command& app) {
  const Command costs =
      app.AddCommand("costs", "The cost profiles of a running server: show, measure, promote");
  costs.Footer(
      "A profile has a name and versions that never change. Jobs name it as NAME (its first "
      "version), NAME@VERSION or NAME@latest (the promoted one).\n"
      "  bucketctl costs report samples.json && bucketctl costs propose h100_nvlink\n"
      "  bucketctl costs diff h100_nvlink@latest h100_nvlink@2 && bucketctl costs promote "
      "h100_nvlink@2");
  auto args = std::make_shared<CostsArgs>();
  const auto first = [&](const Command& command, const char* name, const char* help) {
    return command.AddOption(name, args->first, help);
  };
  first(Add(costs, args, "list", "Names, versions and held samples",
            "  bucketctl costs list\n  bucketctl costs list ours --json", List),
        "name", "only this one");
  first(Add(costs, args, "show", "One version; --json prints a profile file",
            "A file to plan with here, or to change and import:\n"
            "  bucketctl costs show ours@latest --json > ours.json",
            Show),
        "profile", "NAME, NAME@VERSION or NAME@latest")
      .Required();
  const Command import =
      Add(costs, args, "import", "A profile file as a new version",
          "The first version of a name is its latest at once, a later one once it is promoted:\n"
          "  bucketctl costs import ours.json --by ops",
          Import);
  first(import, "file", "as --profile of bucketctl plan takes it").Required();
  import.AddOption("--name", args->name, "instead of the file's own");
  import.AddOption("--by", args->by, "who brings it, for the record");
  first(Add(costs, args, "report", "Hand in measured samples",
            "Who measured what, and how long it took; more members: link_class, mesh_dim, mode "
            "(packed, grouped), launches.\n"
            "  {\"profile\": \"ours\", \"reporter\": \"node7\", \"samples\": [\n"
            "    {\"kind\": \"all_gather\", \"dtype\": \"bf16\", \"group_size\": 16, "
            "\"ranks_per_node\": 8,\n"
            "     \"bytes\": 1048576, \"picoseconds\": 61000000}]}\n"
            "  bucketctl costs report samples.json && bucketctl costs propose ours",
            SendReport),
        "file", "JSON, as below")
      .Required();
  AddImportTraceCommand(costs);
  first(Add(costs, args, "propose", "Fit a new version to the samples that are held",
            "Until it is promoted only jobs that name it get plans by it:\n"
            "  bucketctl costs propose ours && bucketctl costs diff ours@latest ours@2",
            Propose),
        "name", "whose latest version is the start")
      .Required();
  first(Add(costs, args, "promote", "Make a version what NAME@latest means",
            "Running generations of jobs keep their plans; later ones follow:\n"
            "  bucketctl costs promote ours@2",
            Promote),
        "version", "NAME@VERSION")
      .Required();
  first(Add(costs, args, "rollback", "Back to what was latest before",
            "A promotion was wrong:\n"
            "  bucketctl costs rollback ours && bucketctl costs list ours",
            Rollback),
        "name", "whose")
      .Required();
  const Command diff = Add(costs, args, "diff", "How numbers and links differ",
                           "What would change, before it does:\n"
                           "  bucketctl costs diff ours@latest ours@2\n"
                           "  bucketctl costs diff ours@latest ours.json",
                           Difference);
  first(diff, "a", "NAME@VERSION, NAME@latest or a file").Required();
  diff.AddOption("b", args->second, "the same").Required();
}

}  // namespace bucketd::ctl
