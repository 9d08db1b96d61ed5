// Whole files that people name: anything that can be read, pipes too.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace bucketd {

// NOT_FOUND: it cannot be opened, or is a directory. INVALID_ARGUMENT: it has more than
// `max_bytes`; no more than those are read. UNAVAILABLE: reading it failed. Each names the file and
// says why.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

}  // namespace bucketd
