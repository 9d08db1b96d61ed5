// What the project's programs with subcommands do alike. Results go to stdout, everything else to
// stderr.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bucketd {

// Exit codes, part of every command line's contract.
enum Exit : int { kDone = 0, kRefused = 1, kUsage = 2, kUnavailable = 3 };

// Prints the error, if it is one, after the program's name, and says how to exit.
int Report(const absl::Status& status);

// Parses main's arguments and runs the subcommand's callback, which sets `exit`. Returns how to
// exit: that, or kUsage with a message that names the nearest word that is known.
int RunCommandLine(CLI::App& app, int argc, char** argv, const int& exit);

// UNAVAILABLE if it cannot be written.
absl::Status WriteFile(const std::string& path, absl::string_view bytes);

}  // namespace bucketd
