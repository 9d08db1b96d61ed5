// bucketd-opt's command line, which is also what a golden's RUN lines are written in.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/tools/opt.h"

namespace CLI {
class App;
}

namespace bucketd {

struct OptFlags {
  std::string file = "-";
  std::string mode, profile = "h100_nvlink";
  std::vector<std::string> settings;
  bool quiet = false, list = false;
  OptRequest given;  // what the other flags say

  // INVALID_ARGUMENT or NOT_FOUND names the flag's value.
  absl::StatusOr<OptRequest> ToRequest() const;
};

void AddOptFlags(CLI::App& app, OptFlags& flags);
// Tables of passes, modes and options, for --list.
std::string OptTables();

}  // namespace bucketd
