#include "server/rpc/request_scope.h"

#include <atomic>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "spdlog/spdlog.h"

#include "server/base/errors.h"
#include "server/base/log.h"

namespace bucketd {
namespace {

uint32_t ServerTag() {
  static const uint32_t tag = std::random_device{}();
  return tag;
}

uint64_t NextNumber() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// A bijection that spreads its bits (the finaliser of SplitMix64): distinct numbers give distinct
// spans.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

spdlog::level::level_enum LevelOf(const absl::Status& status,
                                  const std::optional<TraceContext>& trace) {
  // Operators are told of what is the server's own fault; a caller hears of the rest himself.
  if (status.code() == absl::StatusCode::kInternal) return spdlog::level::err;
  const bool sampled = trace.has_value() && trace->sampled;
  return sampled && !spdlog::should_log(spdlog::level::debug) ? spdlog::level::info
                                                              : spdlog::level::debug;
}

}  // namespace

RequestScope::RequestScope(Method method, ServerMetrics& metrics)
    : method_(method),
      metrics_(metrics),
      start_(std::chrono::steady_clock::now()),
      number_(NextNumber()) {
  metrics_.RequestStarted(method_);
}

void RequestScope::End(const absl::Status& status, absl::string_view about,
                       const std::optional<TraceContext>& trace) {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
  metrics_.RequestEnded(method_, status.code(), took.count());
  if (!status.ok() && status.code() != absl::StatusCode::kCancelled) {
    metrics_.recent_errors.Add({std::chrono::system_clock::now(), std::string(Name(method_)),
                                status.code(), ReasonOf(status), std::string(status.message()),
                                id(), trace.has_value() ? trace->trace_id : ""});
  }
  Log(status, about, took.count(), trace);
}

void RequestScope::Log(const absl::Status& status, absl::string_view about, double seconds,
                       const std::optional<TraceContext>& trace) const {
  const spdlog::level::level_enum level = LevelOf(status, trace);
  if (!spdlog::should_log(level)) return;
  const CallIds call = ids(trace);
  const WorkFor names(call);
  std::vector<LogField> fields = {{"code", absl::StatusCodeToString(status.code())},
                                  {"seconds", absl::StrFormat("%.6f", seconds), true}};
  for (const absl::string_view pair : absl::StrSplit(about, ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    fields.push_back({field.first, std::string(field.second)});
  }
  if (!status.ok()) {
    fields.push_back({"reason", ReasonOf(status)});
    fields.push_back({"error", std::string(status.message())});
  }
  LogLine(level, Name(method_), fields);
}

std::string RequestScope::id() const { return absl::StrFormat("%08x-%d", ServerTag(), number_); }

std::string RequestScope::span_id() const {
  const uint64_t span = Mix((uint64_t{ServerTag()} << 32) ^ number_);
  return absl::StrFormat("%016x", span == 0 ? 1 : span);
}

CallIds RequestScope::ids(const std::optional<TraceContext>& trace) const {
  if (!trace.has_value()) return {id(), "", "", ""};
  return {id(), trace->trace_id, span_id(), trace->parent_id};
}

}  // namespace bucketd
