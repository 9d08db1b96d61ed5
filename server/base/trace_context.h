// W3C Trace Context (https://www.w3.org/TR/trace-context/): which trace a call belongs to, and
// whether its caller records it.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace bucketd {

struct TraceContext {
  std::string trace_id;   // 32 lower-case hex digits, not all 0
  std::string parent_id;  // 16 of them: the caller's span
  bool sampled = false;
};

// Reads a `traceparent` header. Nothing if it is malformed: then, by the standard, the call is
// taken as one without a trace. Headers of later versions are read as far as this version knows
// them.
std::optional<TraceContext> ParseTraceparent(absl::string_view header);

// The header that names our own span, 16 lower-case hex digits, in the caller's trace.
std::string Traceparent(const TraceContext& trace, absl::string_view span_id);

// How log lines name a call; what it does not have is "".
struct CallIds {
  std::string request;  // unique among servers; in the trailer of a failed call too
  std::string trace;
  std::string span;  // ours
  std::string parent_span;
};

}  // namespace bucketd
