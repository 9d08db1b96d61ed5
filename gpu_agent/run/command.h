// What bucket-agent's subcommands share. Results go to stdout, everything else to stderr.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "gpu_agent/run/session.h"

namespace bucketd::agent {

// Exit codes, part of the command line's contract; those of bucketctl.
enum Exit : int { kDone = 0, kRefused = 1, kUsage = 2, kUnavailable = 3 };

// Each adds its subcommand to `app`; when that one is parsed it runs and sets `exit`. `arguments`
// are main's, for the ranks that a command starts.
void AddCalibrateCommand(CLI::App& app, const std::vector<std::string>& arguments, int& exit);
void AddReplayCommand(CLI::App& app, const std::vector<std::string>& arguments, int& exit);

// --backend, --ranks and the two flags of the ranks that a command starts.
void AddSessionFlags(CLI::App& command, SessionOptions& options);

// Prints the error, if it is one, and says how to exit.
int Report(const absl::Status& status);
// UNAVAILABLE if it cannot be written.
absl::Status WriteFile(const std::string& path, absl::string_view bytes);

}  // namespace bucketd::agent
