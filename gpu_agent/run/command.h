// What bucket-agent's subcommands share.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "client/cli/flags.h"

#include "gpu_agent/run/session.h"

namespace bucketd::agent {

// Each adds its subcommand to `app`; when that one is parsed it runs and says how to exit.
// `arguments` are main's, for the ranks that a command starts.
void AddCalibrateCommand(const Command& app, const std::vector<std::string>& arguments);
void AddReplayCommand(const Command& app, const std::vector<std::string>& arguments);

// --backend, --ranks and the two flags of the ranks that a command starts.
void AddSessionFlags(const Command& command, SessionOptions& options);

// From 100 ms up; OUT_OF_RANGE names the flag.
absl::Status ReadDuration(const char* flag, const std::string& text, absl::Duration longest,
                          absl::Duration& to);

// OUT_OF_RANGE names the flag, if its text is neither of the two.
absl::Status CheckEither(const char* flag, const std::string& text, const char* one,
                         const char* other);

// What a rank that does not come, or go on, is to a command: UNAVAILABLE.
absl::Status AsAbsence(const absl::Status& status);

std::string HostName();

}  // namespace bucketd::agent
