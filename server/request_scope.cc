#include "server/request_scope.h"

#include <atomic>
#include <random>

#include "absl/strings/str_format.h"
#include "spdlog/spdlog.h"

#include "server/errors.h"

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

}  // namespace

RequestScope::RequestScope(Method method, ServerMetrics& metrics)
    : method_(method),
      metrics_(metrics),
      start_(std::chrono::steady_clock::now()),
      number_(NextNumber()) {
  metrics_.RequestStarted(method_);
}

void RequestScope::End(const absl::Status& status, absl::string_view about) {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
  metrics_.RequestEnded(method_, status.code(), took.count());
  // Operators are told of what is the server's own fault; a caller hears of the rest himself.
  const bool our_fault = status.code() == absl::StatusCode::kInternal;
  const spdlog::level::level_enum level = our_fault ? spdlog::level::err : spdlog::level::debug;
  if (!spdlog::should_log(level)) return;
  const absl::string_view method = Name(method_);
  const std::string code = absl::StatusCodeToString(status.code());
  spdlog::log(level, "{} request={} code={} reason={} seconds={:.6f} {}{}{}", std::string(method),
              id(), code, ReasonOf(status), took.count(), std::string(about),
              status.ok() ? "" : ": ", std::string(status.message()));
}

std::string RequestScope::id() const { return absl::StrFormat("%08x-%d", ServerTag(), number_); }

}  // namespace bucketd
