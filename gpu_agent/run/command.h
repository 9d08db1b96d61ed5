// What bucket-agent's subcommands share.
#pragma once

#include <string>
#include <vector>

#include "client/cli/command_line.h"

#include "gpu_agent/run/session.h"

namespace bucketd::agent {

// Each adds its subcommand to `app`; when that one is parsed it runs and sets `exit`. `arguments`
// are main's, for the ranks that a command starts.
void AddCalibrateCommand(CLI::App& app, const std::vector<std::string>& arguments, int& exit);
void AddReplayCommand(CLI::App& app, const std::vector<std::string>& arguments, int& exit);

// --backend, --ranks and the two flags of the ranks that a command starts.
void AddSessionFlags(CLI::App& command, SessionOptions& options);

}  // namespace bucketd::agent
