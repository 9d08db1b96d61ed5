// bucketctl: plans captured graphs in this process, without a server, and shows what came out; asks
// and tells a running server.
#include <exception>
#include <iostream>

#include "client/ctl/command.h"

int main(int argc, char** argv) {
  CLI::App app{
      "bucketctl plans which collectives of a captured training step share a bucket and when each "
      "runs.\n"
      "Most of it works on files (proto/GRAPH.md) and needs no server; what has --server talks to "
      "a "
      "running\nbucketd. Results go to stdout, messages to stderr;\n"
      "exit codes: 0 done, 1 refused (illegal plan or graph), 2 usage, 3 unavailable.\n"
      "A first look:  bucketctl plan step.bw.json.gz --trace-out step.trace.json",
      "bucketctl"};
  app.require_subcommand(1);
  int exit = bucketd::ctl::kDone;
  bucketd::ctl::AddPlanCommand(app, exit);
  bucketd::ctl::AddCompareCommand(app, exit);
  bucketd::ctl::AddExplainCommand(app, exit);
  bucketd::ctl::AddSimulateCommand(app, exit);
  bucketd::ctl::AddTraceCommand(app, exit);
  bucketd::ctl::AddDigestCommand(app, exit);
  bucketd::ctl::AddShowCommand(app, exit);
  bucketd::ctl::AddDiffCommand(app, exit);
  bucketd::ctl::AddKeyCommand(app, exit);
  bucketd::ctl::AddStoreCommand(app, exit);
  bucketd::ctl::AddStatusCommand(app, exit);
  bucketd::ctl::AddCostsCommand(app, exit);
  bucketd::ctl::AddPlansCommand(app, exit);
  bucketd::ctl::AddJobsCommand(app, exit);
  bucketd::ctl::AddEvictCommand(app, exit);
  bucketd::ctl::AddPinCommand(app, exit);
  bucketd::ctl::AddDisableCommand(app, exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cerr, std::cerr);
    return bucketd::ctl::kUsage;
  } catch (const std::exception& error) {
    std::cerr << "bucketctl: " << error.what() << "\n";
    return bucketd::ctl::kUnavailable;
  }
  return exit;
}
