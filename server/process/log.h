// Where a daemon's log lines go: standard error, as text or as one JSON object a line. Whatever a
// line says, it stays one line: control characters are escaped in both forms. Of each kind of line
// at info and above no more are written than log_limit.h says; `not_logged` counts those left out,
// as it does those for which there is no room where they go.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "spdlog/common.h"

namespace bucketd {

// Levels: trace, debug, info, warn, error, off. INVALID_ARGUMENT lists them.
absl::Status ConfigureLog(const std::string& program, const std::string& level, bool json);

struct LogField {
  absl::string_view key;  // a word; not time, level, thread or message
  std::string value;
  bool is_number = false;
};

// One line with fields: `message key=value ...`, or members of the JSON object. Lines of other
// code, written through spdlog as plain text, stand beside it. Thread-safe.
void WriteLogLine(spdlog::level::level_enum level, absl::string_view message,
                  absl::Span<const LogField> fields);

}  // namespace bucketd
