// One configuration out of four sources. A flag counts more than the environment, the environment
// more than the file, the file more than the default.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "server/config/options.h"

namespace bucketd {

struct ConfigSources {
  std::string file = {};  // path of a TOML file: `key = value` lines, no tables; "": none
  // Variables by name. Those that do not begin with BUCKETD_ are nobody's business here; unknown
  // ones that do belong to other programs, unless they look like a slip of the pen.
  std::map<std::string, std::string> environment = {};
  // As given: name of the option and its text.
  std::vector<std::pair<std::string, std::string>> flags = {};
};

struct Config {
  ServerOptions options;
  // Where each option of OptionTable() was set, in its order: "default", "/etc/bucketd.toml:12",
  // "environment BUCKETD_HTTP", "flag --http".
  std::vector<std::string> from;
};

// INVALID_ARGUMENT: every problem of every source, one a line, each naming source and key. An
// unknown key is one, and the nearest known key is named. A file that cannot be read is one too.
absl::StatusOr<Config> LoadConfig(const ConfigSources& sources);

// As a configuration file that sets every option, with a comment that says where it came from.
std::string PrintConfig(const Config& config);

}  // namespace bucketd
