// Where log lines go: standard error, as text or as one JSON object a line.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace bucketd {

// Levels: trace, debug, info, warn, error, off. INVALID_ARGUMENT lists them.
absl::Status ConfigureLog(const std::string& level, bool json);

}  // namespace bucketd
