#include <string>

#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"
#include "client/render/table.h"

#include "passes/base/words.h"

namespace bucketd::ctl {
namespace {

struct JobsArgs {
  ServerArgs server;
  std::optional<std::string> tenant;
  std::string job;
};

std::string WaitsFor(const v1::JobStatus& job) {
  if (job.state() != "waiting") return "";
  std::string out = RangesInWords({job.missing().data(), static_cast<size_t>(job.missing_size())});
  const int64_t more = int64_t{job.size()} - job.arrived() - job.missing_size();
  if (more > 0) absl::StrAppend(&out, " and ", more, " more");
  return out;
}

std::string JobsText(const v1::ListJobsResponse& jobs) {
  Table table("llrllrrlll", {"job", "tenant", "generation", "scope", "state", "since", "ranks",
                             "waits for", "about", "replica"});
  for (const v1::JobStatus& job : jobs.jobs()) {
    table.AddRow({job.id(), job.tenant().empty() ? "-" : job.tenant(),
                  absl::StrCat(job.generation()), job.scope(), job.state(), Ago(job.since_ms()),
                  absl::StrCat(job.arrived(), "/", job.size()), WaitsFor(job), job.about(),
                  job.replica().empty() ? "-" : job.replica()});
  }
  std::string text = table.Text();
  if (jobs.truncated()) absl::StrAppend(&text, "... and more: name one with --job\n");
  text += NotReachedText(jobs.not_reached(), "jobs that it has are missing here");
  return text;
}

int Run(const JobsArgs& args) {
  v1::ListJobsRequest request;
  if (args.tenant) request.set_tenant(*args.tenant);
  request.set_id(args.job);
  return ShowCall(args.server, AdminOf(args.server).ListJobs(request), JobsText);
}

}  // namespace

void AddJobsCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<JobsArgs>(
      "jobs", "List the jobs whose ranks agree on plans, and which ranks are waited for", Run);
  AddServerArgs(command, args.server);
  command.AddOption("--tenant", args.tenant, "of this tenant; \"\": the default one");
  command.AddOption("--job", args.job, "this job alone");
  command.Footer(
      "A scope is one graph of a job that all ranks must have the same plan of. States: waiting "
      "(for\n"
      "the ranks named), planning (all have come), agreed, failed (why stands behind it),\n"
      "unplanned (planning was off when the generation began: bucketctl disable). Of several\n"
      "replicas any lists the jobs of all, and at the end those that did not answer within 2 s.\n"
      "  bucketctl jobs --job llama-70b");
}

}  // namespace bucketd::ctl
