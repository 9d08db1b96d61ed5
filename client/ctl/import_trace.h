// bucketctl costs import-trace: profiler traces to a cost profile, or to samples for a server.
#pragma once

#include "client/cli/flags.h"

namespace bucketd::ctl {

// Adds the subcommand to `costs`; when it is parsed it runs and says how to exit.
void AddImportTraceCommand(const Command& costs);

}  // namespace bucketd::ctl
