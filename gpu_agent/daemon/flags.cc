#include "gpu_agent/daemon/flags.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "gpu_agent/run/command.h"
#include "gpu_agent/telemetry/ring_layout.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr size_t kMostJobs = 16;

// A trainer's ring holds no other, so that no trainer would ever be of that name.
absl::Status CheckJob(const std::string& job) {
  const bool fits = !job.empty() && job.size() <= kMostJobBytes &&
                    std::all_of(job.begin(), job.end(), [](char c) {
                      return absl::ascii_isprint(static_cast<unsigned char>(c));
                    });
  if (fits) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("--telemetry-job: ", absl::CHexEscape(job),
                                            ": expected 1 to ", kMostJobBytes,
                                            " printable ASCII characters"));
}

}  // namespace

Flag AddTrainingFlags(const Command& command, TrainingFlags& flags) {
  const Flag socket =
      command
          .AddOption("--telemetry", flags.socket,
                     "unix socket at which trainers report what their buckets take (agent= of the "
                     "Python client); a path, made here")
          .TypeName("SOCKET");
  command
      .AddOption("--telemetry-users", flags.users,
                 "whose trainers may report: own, this user's and root's, or all")
      .TypeName("own|all")
      .ShowDefault();
  command
      .AddOption("--telemetry-job", flags.jobs,
                 "a job that has a label of its own in metrics, again for each, up to 16; those of "
                 "all others have training=\"other\"; at most 47 characters")
      .TypeName("NAME")
      .OneValueEach();
  command
      .AddOption("--telemetry-every", flags.every,
                 "pause between reports of what training took to the planner")
      .ShowDefault();
  return socket;
}

absl::Status ReadTrainingFlags(const TrainingFlags& flags, TrainingOptions& options) {
  options.collector.socket = flags.socket;
  RETURN_IF_ERROR(CheckEither("--telemetry-users", flags.users, "own", "all"));
  options.collector.any_user = flags.users == "all";
  if (flags.jobs.size() > kMostJobs) {
    return absl::OutOfRangeError(absl::StrCat("--telemetry-job: ", flags.jobs.size(),
                                              " jobs; expected at most ", kMostJobs));
  }
  for (const std::string& job : flags.jobs) RETURN_IF_ERROR(CheckJob(job));
  options.jobs = flags.jobs;
  options.host = HostName();
  return ReadDuration("--telemetry-every", flags.every, absl::Hours(24), options.report_every);
}

void AddHttpFlag(const Command& command, std::string& http) {
  command
      .AddOption(
          "--http", http,
          "side port, plain HTTP for whoever reaches it: /metrics, /livez, /readyz; \"\": none")
      .TypeName("HOST:PORT")
      .ShowDefault();
}

absl::StatusOr<std::unique_ptr<SidePort>> OpenSidePort(const std::string& http,
                                                       const prometheus::Registry& registry,
                                                       SidePort::Handlers handlers) {
  if (http.empty()) return nullptr;
  const size_t colon = http.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(http.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::OutOfRangeError(absl::StrCat("--http: ", http, ": expected HOST:PORT"));
  }
  return SidePort::Start(http, registry, std::move(handlers));
}

}  // namespace bucketd::agent
