// How the project's programs with subcommands report and exit. Results go to stdout, everything
// else to stderr.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bucketd {

// Exit codes, part of every command line's contract.
enum Exit : int { kDone = 0, kRefused = 1, kUsage = 2, kUnavailable = 3 };

// For a terminal: control characters other than the end of a line, which may be commands to it,
// as "\x1b". What servers answer may hold what their callers wrote.
std::string ForTerminal(absl::string_view text);

// Prints the error, if it is one, after the program's name, and says how to exit.
int Report(const absl::Status& status);

// The file is there whole, or as it was before, whoever else writes it; what is no regular file, or
// stands in a folder that takes no other, is written to. UNAVAILABLE if it cannot be written.
absl::Status WriteFile(const std::string& path, absl::string_view bytes);

}  // namespace bucketd
