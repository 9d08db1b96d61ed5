#include "server/process/log.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

#include "server/process/log_limit.h"

namespace bucketd {
namespace {

// spdlog carries one string. One that begins with kMarker has fields: message, then for each field
// its separator, key, '=' and value, in which none of these characters is left.
constexpr char kMarker = '\x1e';
constexpr char kText = '\x1f';
constexpr char kNumber = '\x1d';

void Append(absl::string_view text, spdlog::memory_buf_t& out) {
  out.append(text.data(), text.data() + text.size());
}

// As the inside of a JSON string; text lines use the same escapes, but leave quotes alone.
void AppendEscaped(absl::string_view text, bool quotes, spdlog::memory_buf_t& out) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (quotes && (c == '"' || c == '\\')) {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      Append("\\n", out);
    } else if (byte < 0x20 || byte == 0x7f) {
      Append(absl::StrFormat("\\u%04x", byte), out);
    } else {
      out.push_back(c);
    }
  }
}

struct Field {
  bool is_number;
  absl::string_view key;
  absl::string_view value;
};

// Takes the next field off `rest`, which begins with its separator.
Field TakeField(absl::string_view& rest) {
  const size_t end = rest.find_first_of("\x1f\x1d", 1);
  const absl::string_view all = rest.substr(1, end == rest.npos ? rest.npos : end - 1);
  const size_t equals = all.find('=');
  const Field field{rest[0] == kNumber, all.substr(0, equals), all.substr(equals + 1)};
  rest = end == rest.npos ? absl::string_view() : rest.substr(end);
  return field;
}

absl::string_view TakeMessage(absl::string_view payload, absl::string_view& rest) {
  rest = {};
  if (payload.empty() || payload[0] != kMarker) return payload;
  const size_t end = std::min(payload.size(), payload.find_first_of("\x1f\x1d"));
  rest = payload.substr(end);
  return payload.substr(1, end - 1);
}

// %* in a pattern: the message and its fields, in JSON as members of an object.
class Line final : public spdlog::custom_flag_formatter {
 public:
  explicit Line(bool json) : json_(json) {}

  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    absl::string_view rest;
    const absl::string_view payload(message.payload.data(), message.payload.size());
    if (json_) Append("\"message\":\"", out);
    AppendEscaped(TakeMessage(payload, rest), json_, out);
    if (json_) out.push_back('"');
    while (!rest.empty()) {
      const Field field = TakeField(rest);
      const bool plain =
          !field.value.empty() && field.value.find_first_of(" \"=") == field.value.npos;
      const bool quotes = json_ ? !field.is_number : !plain;
      Append(json_ ? ",\"" : " ", out);
      Append(field.key, out);
      Append(json_ ? "\":" : "=", out);
      if (quotes) out.push_back('"');
      AppendEscaped(field.value, json_ || quotes, out);
      if (quotes) out.push_back('"');
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Line>(json_);
  }

 private:
  const bool json_;
};

// Without what would end a field.
std::string Inside(absl::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c == kMarker || c == kText || c == kNumber) c = ' ';
  }
  return out;
}

// What lines that differ in their details alone have in common.
std::string KindOf(const spdlog::details::log_msg& line) {
  absl::string_view rest;
  const absl::string_view message = TakeMessage({line.payload.data(), line.payload.size()}, rest);
  return absl::StrCat(static_cast<int>(line.level),
                      message.substr(0, message.find_first_of("0123456789:=\"")));
}

using Stderr = spdlog::sinks::stderr_sink_mt;

// But for what LogLimit leaves out of lines that are there without being asked for.
class LimitedStderr final : public Stderr {
 public:
  void log(const spdlog::details::log_msg& line) override {
    const std::string kind = KindOf(line);
    const absl::MutexLock lock(&limit_mutex_);
    std::optional<int64_t> left_out = 0;
    if (line.level >= spdlog::level::info) left_out = limit_.Admit(kind, Clock::now());
    if (!left_out.has_value()) return;
    if (!IsTaken()) {
      limit_.LeaveOut(kind, *left_out + 1, Clock::now());
    } else if (*left_out == 0) {
      Stderr::log(line);
    } else {
      Write(line, *left_out);
    }
  }

  // After each line, and each second without one.
  void flush() override {
    const absl::MutexLock lock(&limit_mutex_);
    for (const auto& [kind, left_out] : limit_.TakeLeftOut(Clock::now())) {
      if (!IsTaken()) {
        limit_.LeaveOut(kind, left_out, Clock::now());
        continue;
      }
      const std::string payload = absl::StrCat("lines left out: ", kind.substr(1));
      Write({"", spdlog::level::warn, payload}, left_out);
    }
    Stderr::flush();
  }

 private:
  using Clock = std::chrono::steady_clock;

  // A pipe that nobody empties, because its reader has stopped, would hold up every thread that has
  // something to say. Where there is room there is enough for a line.
  static bool IsTaken() {
    pollfd out{STDERR_FILENO, POLLOUT, 0};
    return poll(&out, 1, 0) != 0;
  }

  void Write(spdlog::details::log_msg line, int64_t left_out) {
    std::string payload(line.payload.data(), line.payload.size());
    if (payload.empty() || payload[0] != kMarker) payload = kMarker + Inside(payload);
    absl::StrAppend(&payload, std::string(1, kNumber), "not_logged=", left_out);
    line.payload = payload;
    Stderr::log(line);
  }

  absl::Mutex limit_mutex_;
  LogLimit limit_ ABSL_GUARDED_BY(limit_mutex_);
};

// A thread that flushes, and takes no signal: those are for whoever asks for them.
void FlushEachSecond() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  spdlog::flush_every(std::chrono::seconds(1));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

absl::Status ConfigureLog(const std::string& program, const std::string& level, bool json) {
  const spdlog::level::level_enum parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--log-level: \"", level, "\" is unknown; known are trace, debug, info, warn, error, off"));
  }
  auto logger = std::make_shared<spdlog::logger>(program, std::make_shared<LimitedStderr>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<Line>('*', json).set_pattern(
      json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","thread":%t,%*})"
           : "%Y-%m-%dT%H:%M:%S.%eZ %L %*");
  logger->set_formatter(std::move(formatter));
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  FlushEachSecond();
  return absl::OkStatus();
}

void WriteLogLine(spdlog::level::level_enum level, absl::string_view message,
                  absl::Span<const LogField> fields) {
  if (!spdlog::should_log(level)) return;
  std::string payload = absl::StrCat(std::string(1, kMarker), Inside(message));
  for (const LogField& field : fields) {
    payload.push_back(field.is_number ? kNumber : kText);
    absl::StrAppend(&payload, field.key, "=", Inside(field.value));
  }
  spdlog::log(level, "{}", payload);
}

}  // namespace bucketd
