#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"

#include "passes/base/status_macros.h"
#include "passes/io/message_json.h"

namespace bucketd::ctl {
namespace {

struct PinArgs {
  ServerArgs server;
  std::string job;
  std::string tenant;
  std::string span = "30d";
  bool release = false;
  bool all = false;
};

// Each once, though several calls did not reach it.
void AddNotReached(const v1::UnpinJobResponse& done, v1::UnpinJobResponse& sum) {
  for (const v1::NotReached& one : done.not_reached()) {
    const auto& said = sum.not_reached();
    const bool is_known = std::any_of(said.begin(), said.end(), [&](const v1::NotReached& other) {
      return other.address() == one.address();
    });
    if (!is_known) *sum.add_not_reached() = one;
  }
}

int Release(client::AdminClient& admin, const PinArgs& args) {
  v1::UnpinJobRequest request;
  request.set_tenant(args.tenant);
  request.set_job_id(args.job);
  request.set_pattern(args.all);
  v1::UnpinJobResponse sum;
  absl::StatusOr<v1::UnpinJobResponse> done;
  do {
    done = admin.UnpinJob(request);
    if (!done.ok()) return ReportCall(done.status());
    sum.set_released(sum.released() + done->released());
    sum.set_jobs(sum.jobs() + done->jobs());
    AddNotReached(*done, sum);
  } while (done->more());
  const int shown = ShowCall(
      args.server, absl::StatusOr<v1::UnpinJobResponse>(sum), [&](const v1::UnpinJobResponse& all) {
        return absl::StrCat(
            "released ", all.released(), " plans of ",
            args.all ? absl::StrCat(all.jobs(), " jobs") : absl::StrCat("job ", args.job), "\n",
            NotReachedText(
                all.not_reached(),
                "ranks that wait there wait on, and it remembers the job: say it again"));
      });
  return sum.not_reached_size() == 0 ? shown : kRefused;
}

int Pin(client::AdminClient& admin, const PinArgs& args) {
  v1::PinJobRequest request;
  request.set_tenant(args.tenant);
  request.set_job_id(args.job);
  int64_t span = 0;
  const absl::Status parsed = ParseSpan(args.span, span);
  if (!parsed.ok()) return ReportCall(parsed);
  request.set_ttl_ms(span);
  return ShowCall(args.server, admin.PinJob(request), [&](const v1::PinJobResponse& done) {
    const std::string until = absl::FormatTime(
        "%Y-%m-%d %H:%M UTC", absl::FromUnixMillis(done.expires_ms()), absl::UTCTimeZone());
    return absl::StrCat("pinned ", done.pinned(), " plans of job ", args.job, " until ", until,
                        "\n");
  });
}

int Run(const PinArgs& args) {
  client::AdminClient admin = AdminOf(args.server);
  if (args.all && !args.release) {
    return ReportCall(
        absl::InvalidArgumentError("--all: jobs are kept one by one; with --release"));
  }
  return args.release ? Release(admin, args) : Pin(admin, args);
}

}  // namespace

void AddPinCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<PinArgs>(
      "pin", "Keep the plans that a job's ranks agreed on, or let go of them", Run);
  AddServerArgs(command, args.server);
  command.AddOption("job", args.job, "as bucketctl jobs shows it").Required().TypeName("JOB");
  command.AddOption("--tenant", args.tenant, "the job's tenant");
  command.AddOption("--for", args.span, "from now on: 12h, 30d").ShowDefault().TypeName("SPAN");
  command
      .AddFlag("--release", args.release,
               "let go of them, and forget the job and which generation it is in")
      .Excludes({"--for"});
  command.AddFlag("--all", args.all,
                  "with --release: JOB is a pattern (*, ?, [a-z]) and means all jobs that it fits");
  command.Footer(
      "A job pins its plans by itself, and they expire when it has been gone for long (bucketd\n"
      "--pin-ttl-hours). This is for a job that will be away longer, or that is gone for good.\n"
      "Replicas of one store share the plans, and a release at one of them is one at all; those\n"
      "that could not be reached within 2 s are named, and the exit code is 1.\n"
      "  bucketctl pin llama-70b --for 90d\n"
      "  bucketctl pin llama-70b --release\n"
      "  bucketctl pin 'sweep-*' --release --all");
}

}  // namespace bucketd::ctl
