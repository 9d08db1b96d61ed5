// The subcommand `bucket-agent daemon`.
#pragma once

#include "client/cli/flags.h"

namespace bucketd::agent {

// As run/command.h's.
void AddDaemonCommand(const Command& app);

}  // namespace bucketd::agent
