// The subcommands `bucket-agent daemon` and `bucket-agent watch`.
#pragma once

#include "client/cli/flags.h"

namespace bucketd::agent {

// As run/command.h's.
void AddDaemonCommand(const Command& app);
void AddWatchCommand(const Command& app);

}  // namespace bucketd::agent
