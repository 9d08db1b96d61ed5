// bucket-agent: runs buckets on the machine where it stands, and measures them.
#include <string>
#include <vector>

#include "client/cli/flags.h"

#include "gpu_agent/daemon/flags.h"
#include "gpu_agent/run/command.h"

namespace bucketd::agent {
namespace {

constexpr char kAbout[] =
    R"(bucket-agent runs the collectives of bucketing plans on this machine and measures them, so that
bucketd's next plans rest on what was measured here.

  bucket-agent calibrate --ranks 2 --profile-out here.json    what do collectives take here?
  bucket-agent daemon --help                                  meet other nodes' agents and stay
  bucket-agent watch --help                                   pass on what trainers report
  bucket-agent replay --help                                  what one command does, with an example

Results go to stdout, messages to stderr. Exit codes: 0 done, 1 refused (an illegal plan, a payload
that came out wrong), 2 usage, 3 unavailable (a rank died, a file cannot be written).)";

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  CommandLine line(kAbout, "bucket-agent");
  const Command app = line.program();
  AddCalibrateCommand(app, arguments);
  AddReplayCommand(app, arguments);
  AddDaemonCommand(app);
  AddWatchCommand(app);
  return line.Run(argc, argv);
}

}  // namespace
}  // namespace bucketd::agent

int main(int argc, char** argv) { return bucketd::agent::Main(argc, argv); }
