// bucketctl: plans captured graphs in this process, without a server, and shows what came out; asks
// and tells a running server.
#include <functional>
#include <vector>

#include "client/cli/command_line.h"
#include "client/ctl/command.h"

namespace bucketd::ctl {
namespace {

constexpr char kAbout[] =
    R"(bucketctl plans which collectives of a captured training step share a bucket and when each runs,
shows why, and operates bucketd, the server that does the same for whole clusters.

  bucketctl plan step.bw.json.gz --trace-out step.trace.json   a first look, without a server
  bucketctl status                                             how is the server on this machine?
  bucketctl evict --help                                       what one command does, with examples

Captured graphs are files that PyTorch's client writes (proto/GRAPH.md). Results go to stdout,
messages to stderr; most commands take --json. Exit codes: 0 done, 1 refused (an illegal plan or
graph, or the server says no), 2 usage, 3 unavailable (nobody answers, a file cannot be written).)";

struct Group {
  const char* name;
  std::vector<void (*)(CLI::App&, int&)> commands;
};

const std::vector<Group>& Groups() {
  static const std::vector<Group> groups = {
      {"Graphs and plans in files, without a server",
       {AddPlanCommand, AddCompareCommand, AddExplainCommand, AddSimulateCommand, AddTraceCommand,
        AddDigestCommand, AddShowCommand, AddDiffCommand, AddKeyCommand}},
      {"A running server (--server ADDRESS, else BUCKETD_ADDRESS, else 127.0.0.1:9460)",
       {AddStatusCommand, AddPlansCommand, AddJobsCommand, AddEvictCommand, AddPinCommand,
        AddDisableCommand, AddEnableCommand, AddCostsCommand}},
      {"A store's folder, whether its server runs or not", {AddStoreCommand}},
  };
  return groups;
}

std::vector<CLI::App*> CommandsOf(CLI::App& app) {
  return app.get_subcommands(std::function<bool(CLI::App*)>());
}

int Main(int argc, char** argv) {
  CLI::App app{kAbout, "bucketctl"};
  app.require_subcommand(1);
  int exit = kDone;
  for (const Group& group : Groups()) {
    for (const auto add : group.commands) {
      add(app, exit);
      CommandsOf(app).back()->group(group.name);
    }
  }
  return RunCommandLine(app, argc, argv, exit);
}

}  // namespace
}  // namespace bucketd::ctl

int main(int argc, char** argv) { return bucketd::ctl::Main(argc, argv); }
