// One request from its arrival to its answer: in flight, counted, timed, and one line in the log.
//
// The line is at level debug; at error if the server is to blame; at info if the caller samples its
// trace, since that says "record this one".
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "server/base/metrics.h"
#include "server/base/trace_context.h"

namespace bucketd {

class RequestScope {
 public:
  // `metrics` outlives this.
  RequestScope(Method method, ServerMetrics& metrics);

  // Once, with the answer. `about` says more in the log: "key=value key=value", values without
  // spaces.
  void End(const absl::Status& status, absl::string_view about,
           const std::optional<TraceContext>& trace = std::nullopt);
  // Unique among servers: what log lines and the trailer of a failed call share.
  std::string id() const;
  // Ours in the caller's trace: 16 hex digits.
  std::string span_id() const;
  CallIds ids(const std::optional<TraceContext>& trace) const;

 private:
  void Log(const absl::Status& status, absl::string_view about, double seconds,
           const std::optional<TraceContext>& trace) const;

  const Method method_;
  ServerMetrics& metrics_;
  const std::chrono::steady_clock::time_point start_;
  const uint64_t number_;
};

}  // namespace bucketd
