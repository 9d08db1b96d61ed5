// bucketctl: plans captured graphs in this process, without a server, and shows what came out; asks
// and tells a running server.
#include <vector>

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
  std::vector<void (*)(const Command&)> commands;
};

const std::vector<Group>& Groups() {
  static const std::vector<Group> groups = {
      {"Graphs and plans in files, without a server",
       {AddPlanCommand, AddCompareCommand, AddExplainCommand, AddSimulateCommand, AddTraceCommand,
        AddDigestCommand, AddShowCommand, AddDiffCommand, AddKeyCommand, AddAdviseCommand}},
      {"A running server (--server ADDRESS, else BUCKETD_ADDRESS, else 127.0.0.1:9460)",
       {AddStatusCommand, AddPlansCommand, AddJobsCommand, AddEvictCommand, AddPinCommand,
        AddDisableCommand, AddEnableCommand, AddAuditCommand, AddCostsCommand}},
      {"A store, whether its server runs or not", {AddStoreCommand}},
  };
  return groups;
}

int Main(int argc, char** argv) {
  CommandLine line(kAbout, "bucketctl");
  for (const Group& group : Groups()) {
    for (const auto add : group.commands) add(line.program().Under(group.name));
  }
  return line.Run(argc, argv);
}

}  // namespace
}  // namespace bucketd::ctl

int main(int argc, char** argv) { return bucketd::ctl::Main(argc, argv); }
