// One call to a server that may be busy, replaced or gone: deadlines, pauses, circuit breaker. What
// every client of bucketd's services is built on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/circuit_breaker.h"
#include "client/client_options.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace bucketd::client {

// Thread-safe.
class RetryingClient {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // One attempt at a call, with a fresh context whose deadline is set.
  using Attempt = std::function<grpc::Status(grpc::ClientContext& context)>;

  // `ping` is a cheap call that any server of the address answers.
  RetryingClient(std::string address, const ClientOptions& options, Attempt ping);

  // `attempt`'s outcome, by `until` at the latest. Beyond what gRPC repeats by itself: a server
  // that is overloaded or about to be replaced says when to come back, and is obeyed; one that went
  // away is waited for, up to the connect timeout, and asked again, three times.
  absl::Status Call(absl::string_view method, Time until, const Attempt& attempt);

  // The parts of it, for calls that go on where they stopped.
  //
  // One attempt, if the breaker lets it. Where nobody answered, `gone` is set.
  absl::Status Once(absl::string_view method, Time until, const Attempt& attempt, bool& gone);
  // Returns once a server answers at the address; UNREACHABLE if none does within the connect
  // timeout.
  absl::Status AwaitReturn(absl::string_view method, Time until);
  // Sleeps for as long as `error` asks, and somewhat longer; false: it does not ask, or `until`
  // would have passed.
  bool Obey(const absl::Status& error, absl::string_view method, Time until);

  // Sleeps a moment, longer at each further attempt, at random: whoever was cut off with us does
  // not come back with us.
  void Pause(int attempt, Time until);

  ClientCounters counters() const;
  void CountUpload(bool resumed);
  // One line to the log, once for each `cause` until the address answers again.
  void Degraded(absl::string_view cause, absl::string_view text);
  const std::string& address() const { return address_; }

 private:
  absl::Status Admit(absl::string_view method, Time until);
  absl::Status CheckTime(absl::string_view method, Time until) const;
  absl::Status Ping(absl::string_view method, Time until, std::chrono::milliseconds patience,
                    bool probe);
  void NobodyAnswered();
  void Answered();
  std::string Where(absl::string_view method) const;

  const std::string address_;
  const ClientOptions options_;
  const Attempt ping_;
  CircuitBreaker breaker_;
  std::mutex logged_mutex_;
  std::set<std::string> logged_;
  std::atomic<int64_t> retries_{0}, waits_{0}, breaker_opens_{0}, fast_failures_{0}, uploads_{0},
      resumed_uploads_{0};
};

}  // namespace bucketd::client
