// The subcommand `bucket-agent watch`.
#pragma once

#include "client/cli/flags.h"

namespace bucketd::agent {

// As run/command.h's.
void AddWatchCommand(const Command& app);

}  // namespace bucketd::agent
