// The subcommands that stay, `bucket-agent daemon` and `bucket-agent watch`, and what they have in
// common: their side port, and what they read of trainers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/flags.h"

#include "gpu_agent/daemon/training.h"
#include "server/process/side_port.h"

namespace bucketd::agent {

// As run/command.h's.
void AddDaemonCommand(const Command& app);
void AddWatchCommand(const Command& app);

// --telemetry and its kin.
struct TrainingFlags {
  std::string socket, users = "own", every = "60s";
  std::vector<std::string> jobs;
};

// Returns --telemetry.
Flag AddTrainingFlags(const Command& command, TrainingFlags& flags);
// OUT_OF_RANGE names the flag. The planner's part of the options stays as it is.
absl::Status ReadTrainingFlags(const TrainingFlags& flags, TrainingOptions& options);

// --http.
void AddHttpFlag(const Command& command, std::string& http);
// Null where `http` is "".
absl::StatusOr<std::unique_ptr<SidePort>> OpenSidePort(const std::string& http,
                                                       const prometheus::Registry& registry,
                                                       SidePort::Handlers handlers);

}  // namespace bucketd::agent
