// Where log lines go: standard error, as text or as one JSON object a line. Whatever a line says,
// it stays one line: control characters are escaped in both forms.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "spdlog/common.h"

#include "server/base/trace_context.h"

namespace bucketd {

// Levels: trace, debug, info, warn, error, off. INVALID_ARGUMENT lists them.
absl::Status ConfigureLog(const std::string& level, bool json);

struct LogField {
  absl::string_view key;  // a word; not time, level, thread or message
  std::string value;
  bool is_number = false;
};

// While one lives, LogLine() on its thread names the call that the work is done for. May nest: the
// innermost counts. Made where work goes on in another thread than its call came in.
class WorkFor {
 public:
  explicit WorkFor(const CallIds& call);  // outlives this
  ~WorkFor();
  WorkFor(const WorkFor&) = delete;
  WorkFor& operator=(const WorkFor&) = delete;

 private:
  const CallIds* const before_;
};

// Of the innermost that lives on this thread; else empty.
CallIds CurrentCall();

// One line with fields: `message key=value ...`, or members of the JSON object; first the ids of
// the call. Lines of other code, written through spdlog as plain text, stand beside it.
// Thread-safe.
void LogLine(spdlog::level::level_enum level, absl::string_view message,
             absl::Span<const LogField> fields);

}  // namespace bucketd
