// The subcommand `bucket-agent daemon`.
#pragma once

#include "CLI/CLI.hpp"

namespace bucketd::agent {

// As run/command.h's.
void AddDaemonCommand(CLI::App& app, int& exit);

}  // namespace bucketd::agent
