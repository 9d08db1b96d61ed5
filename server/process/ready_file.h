// What tells the script that started a daemon that it is ready, and where it listens.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bucketd {

using ReadyMember = std::pair<absl::string_view, std::variant<std::string, int64_t>>;

// One JSON object in a line: the members, and "pid". Readers see the whole file or none.
// UNAVAILABLE names the flag, --ready-file.
absl::Status WriteReadyFile(const std::string& path, std::initializer_list<ReadyMember> members);

}  // namespace bucketd
