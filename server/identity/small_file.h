// Files of secrets and settings, which are read whole, and again once they have changed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bucketd {

// As ReadFile (passes/base/read_file.h), of a file alone: nobody waits for a pipe.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes);

// Another one whenever one of the files was written or replaced, by a link too.
std::string SignatureOf(const std::vector<std::string>& paths);

}  // namespace bucketd
