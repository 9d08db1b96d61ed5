// One request from its arrival to its answer: in flight, counted, timed, and one line in the log at
// level debug.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "server/metrics.h"

namespace bucketd {

class RequestScope {
 public:
  // `metrics` outlives this.
  RequestScope(Method method, ServerMetrics& metrics);

  // Once, with the answer. `about` says more in the log.
  void End(const absl::Status& status, absl::string_view about);
  // Unique among servers: what log lines and the trailer of a failed call share.
  std::string id() const;

 private:
  const Method method_;
  ServerMetrics& metrics_;
  const std::chrono::steady_clock::time_point start_;
  const uint64_t number_;
};

}  // namespace bucketd
