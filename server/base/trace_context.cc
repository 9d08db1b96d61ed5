#include "server/base/trace_context.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace bucketd {
namespace {

// version "-" trace id "-" parent id "-" flags
constexpr size_t kTraceAt = 3;
constexpr size_t kParentAt = 36;
constexpr size_t kFlagsAt = 53;
constexpr size_t kLength = 55;

bool IsHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool IsZero(absl::string_view text) {
  return text.find_first_not_of('0') == absl::string_view::npos;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view header) {
  if (header.size() < kLength) return std::nullopt;
  const absl::string_view version = header.substr(0, 2);
  const absl::string_view trace_id = header.substr(kTraceAt, 32);
  const absl::string_view parent_id = header.substr(kParentAt, 16);
  const absl::string_view flags = header.substr(kFlagsAt, 2);
  if (!IsHex(version) || version == "ff") return std::nullopt;
  // Later versions may say more after another dash.
  if (header.size() > kLength && (version == "00" || header[kLength] != '-')) return std::nullopt;
  for (const size_t dash : {kTraceAt, kParentAt, kFlagsAt}) {
    if (header[dash - 1] != '-') return std::nullopt;
  }
  if (!IsHex(trace_id) || !IsHex(parent_id) || !IsHex(flags)) return std::nullopt;
  if (IsZero(trace_id) || IsZero(parent_id)) return std::nullopt;
  const bool sampled = absl::StrContains("13579bdf", flags[1]);  // the lowest bit
  return TraceContext{std::string(trace_id), std::string(parent_id), sampled};
}

std::string Traceparent(const TraceContext& trace, absl::string_view span_id) {
  return absl::StrCat("00-", trace.trace_id, "-", span_id, trace.sampled ? "-01" : "-00");
}

}  // namespace bucketd
