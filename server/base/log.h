// Log lines that name the call that work is done for.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "spdlog/common.h"

#include "server/base/trace_context.h"
#include "server/process/log.h"

namespace bucketd {

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

// WriteLogLine() with the ids of the call first.
void LogLine(spdlog::level::level_enum level, absl::string_view message,
             absl::Span<const LogField> fields);

}  // namespace bucketd
