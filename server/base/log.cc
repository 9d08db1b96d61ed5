#include "server/base/log.h"

#include <utility>
#include <vector>

#include "spdlog/spdlog.h"

namespace bucketd {
namespace {

// A line is written in the thread that has something to say: the call is known there, and need not
// go through every function that might have.
thread_local const CallIds* current_call = nullptr;

}  // namespace

WorkFor::WorkFor(const CallIds& call) : before_(std::exchange(current_call, &call)) {}
WorkFor::~WorkFor() { current_call = before_; }

CallIds CurrentCall() { return current_call == nullptr ? CallIds() : *current_call; }

void LogLine(spdlog::level::level_enum level, absl::string_view message,
             absl::Span<const LogField> fields) {
  if (!spdlog::should_log(level)) return;
  std::vector<LogField> all;
  if (current_call != nullptr) {
    const CallIds& call = *current_call;
    for (const auto& [key, id] : {std::pair("request", &call.request),
                                  {"trace", &call.trace},
                                  {"span", &call.span},
                                  {"parent_span", &call.parent_span}}) {
      if (!id->empty()) all.push_back({key, *id});
    }
  }
  all.insert(all.end(), fields.begin(), fields.end());
  WriteLogLine(level, message, all);
}

}  // namespace bucketd
