// bucketctl costs import-trace: profiler traces to a cost profile, or to samples for a server.
#pragma once

#include "CLI/CLI.hpp"

namespace bucketd::ctl {

// Adds the subcommand to `costs`; when it is parsed it runs and sets `exit`.
void AddImportTraceCommand(CLI::App& costs, int& exit);

}  // namespace bucketd::ctl
