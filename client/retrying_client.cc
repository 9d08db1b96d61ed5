#include "client/retrying_client.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/channel.h"
#include "client/errors.h"

#include "passes/base/status_macros.h"

namespace bucketd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kReturns = 3;  // of a server that went away during one call

milliseconds Left(RetryingClient::Time until) {
  return std::chrono::ceil<milliseconds>(until - steady_clock::now());
}

double Seconds(milliseconds time) { return static_cast<double>(time.count()) / 1000; }

grpc::Status Attempted(const RetryingClient::Attempt& attempt, milliseconds timeout, bool wait) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  context.set_wait_for_ready(wait);
  return attempt(context);
}

// Whether the server itself said so.
bool HasReason(const grpc::Status& status) {
  absl::Status details(absl::StatusCode::kUnknown, "");
  AddDetails(status.error_details(), details);
  return !ReasonOf(details).empty();
}

// Not what gRPC makes of a server that is not there, or says nothing.
bool IsAnswer(const grpc::Status& status) {
  return HasReason(status) ||
         (!IsGone(status) && status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED);
}

}  // namespace

RetryingClient::RetryingClient(std::string address, const ClientOptions& options, Attempt ping)
    : address_(std::move(address)),
      options_(options),
      ping_(std::move(ping)),
      breaker_(options.breaker) {}

std::string RetryingClient::Where(absl::string_view method) const {
  return absl::StrCat(method, " at ", address_);
}

absl::Status RetryingClient::Call(absl::string_view method, Time until, const Attempt& attempt) {
  for (int returns = 0;;) {
    bool gone = false;
    const absl::Status status = Once(method, until, attempt, gone);
    if (status.ok()) return status;
    if (Obey(status, method, until)) continue;
    if (!gone || returns == kReturns) return status;
    ++returns;
    RETURN_IF_ERROR(AwaitReturn(method, until));
  }
}

absl::Status RetryingClient::Once(absl::string_view method, Time until, const Attempt& attempt,
                                  bool& gone) {
  gone = false;
  RETURN_IF_ERROR(Admit(method, until));
  RETURN_IF_ERROR(CheckTime(method, until));
  const milliseconds left = Left(until);
  const grpc::Status status = Attempted(attempt, left, /*wait=*/false);
  if (IsAnswer(status)) {
    Answered();
  } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
             left >= options_.probe_timeout) {
    NobodyAnswered();  // one that went away is not given up yet: AwaitReturn finds out
  }
  gone = IsGone(status) && !HasReason(status);
  return FromRpc(status, Where(method));
}

absl::Status RetryingClient::CheckTime(absl::string_view method, Time until) const {
  if (steady_clock::now() < until) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, kDeadline,
                   absl::StrCat("no time left for ", Where(method)));
}

void RetryingClient::Answered() {
  if (!breaker_.Succeeded()) return;
  const std::lock_guard lock(logged_mutex_);
  logged_.clear();
}

void RetryingClient::NobodyAnswered() {
  if (!breaker_.Failed(steady_clock::now())) return;
  ++breaker_opens_;
  Degraded("breaker", "does not answer; calls end at once until it does");
}

absl::Status RetryingClient::Admit(absl::string_view method, Time until) {
  RETURN_IF_ERROR(CheckTime(method, until));
  const CircuitBreaker::Admission admission = breaker_.Admit(steady_clock::now());
  if (admission == CircuitBreaker::Admission::kCall) return absl::OkStatus();
  if (admission == CircuitBreaker::Admission::kProbe) {
    return Ping(method, until, options_.probe_timeout, /*probe=*/true);
  }
  ++fast_failures_;
  const milliseconds next = breaker_.Remaining(steady_clock::now());
  return MakeError(
      absl::StatusCode::kUnavailable, kUnreachable,
      absl::StrCat(Where(method), ": the address did not answer before; ",
                   next > milliseconds(0)
                       ? absl::StrFormat("it will be tried again in %.1f s", Seconds(next))
                       : "another call is trying it now"));
}

absl::Status RetryingClient::Ping(absl::string_view method, Time until, milliseconds patience,
                                  bool probe) {
  // A probe must say what came of it; else little patience proves little.
  const bool counts = probe || Left(until) >= std::min(patience, options_.probe_timeout);
  patience = std::max(milliseconds(1), std::min(patience, Left(until)));
  const grpc::Status status = Attempted(ping_, patience, /*wait=*/true);
  if (IsAnswer(status)) {
    Answered();
    return absl::OkStatus();
  }
  if (counts) NobodyAnswered();
  return MakeError(absl::StatusCode::kUnavailable, kUnreachable,
                   absl::StrFormat("%s: nobody answers (tried for %.1f s): %s", Where(method),
                                   Seconds(patience), status.error_message()));
}

absl::Status RetryingClient::AwaitReturn(absl::string_view method, Time until) {
  RETURN_IF_ERROR(CheckTime(method, until));
  ++retries_;
  Degraded("away", "went away; waiting for it to come back");
  return Ping(method, until, options_.connect_timeout, /*probe=*/false);
}

void RetryingClient::Pause(int attempt, Time until) {
  absl::BitGen random;
  const int64_t most = std::min<int64_t>(2000, int64_t{100} << std::min(attempt, 5));
  const milliseconds pause(absl::Uniform(absl::IntervalClosed, random, most / 2, most));
  std::this_thread::sleep_for(std::clamp(Left(until), milliseconds(0), pause));
}

bool RetryingClient::Obey(const absl::Status& error, absl::string_view method, Time until) {
  const std::string reason = ReasonOf(error);
  if (reason != "OVERLOADED" && reason != "QUOTA_USED_UP" && reason != "DRAINING") return false;
  const auto asked = RetryAfter(error);
  if (!asked.has_value()) return false;
  absl::BitGen random;
  const milliseconds pause(absl::Uniform(absl::IntervalClosed, random, asked->count(),
                                         asked->count() + asked->count() / 2));
  if (steady_clock::now() + pause >= until) return false;
  ++waits_;
  Degraded(reason, absl::StrCat(method, " has to wait: ", error.message()));
  std::this_thread::sleep_for(pause);
  return true;
}

void RetryingClient::Degraded(absl::string_view cause, absl::string_view text) {
  {
    const std::lock_guard lock(logged_mutex_);
    if (!logged_.insert(std::string(cause)).second) return;
  }
  const std::string line = absl::StrCat("bucketd: ", address_, ": ", text);
  if (options_.log) {
    options_.log(line);
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

void RetryingClient::CountUpload(bool resumed) {
  ++uploads_;
  if (resumed) ++resumed_uploads_;
}

ClientCounters RetryingClient::counters() const {
  return {.retries = retries_,
          .waits = waits_,
          .breaker_opens = breaker_opens_,
          .fast_failures = fast_failures_,
          .uploads = uploads_,
          .resumed_uploads = resumed_uploads_};
}

}  // namespace bucketd::client
