// One call to servers that may be busy, replaced or gone: which of them is asked, deadlines,
// pauses, circuit breaker. What every client whose calls may be repeated is built on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/circuit_breaker.h"
#include "client/client_options.h"
#include "client/server_channel.h"
#include "client/watched_call.h"
#include "grpcpp/support/status.h"

namespace bucketd::client {

// Which server a call is made to, and those that belong to it, and which one after that. For one
// thread.
class Route {
 public:
  // Who is asked now; "" while a name was not looked up.
  std::string target() const { return at_ == nullptr ? std::string() : at_->target(); }
  // Null for "".
  ServerChannel* server() const { return at_.get(); }

 private:
  friend class RetryingClient;
  Route(std::string about, bool meets) : about_(std::move(about)), meets_(meets) {}
  ServerList Earlier() const;

  const std::string about_;
  const bool meets_;
  ServerList servers_;
  std::shared_ptr<ServerChannel> at_;
  std::string obeyed_;  // what the call that is being made was refused with last
};

// Thread-safe.
class RetryingClient {
 public:
  using Time = std::chrono::steady_clock::time_point;

  RetryingClient(const std::string& address, const ClientOptions& options,
                 const ChannelOptions& channels);

  // Who asks about the same thing comes to the same server while it lives. `meets`: and waits there
  // for others, so a call that waits elsewhere goes back as soon as an earlier server is there.
  Route NewRoute(std::string about, bool meets = false);

  // `attempt`'s outcome, by `until` at the latest. Beyond what gRPC repeats by itself: a server
  // that is overloaded or about to be replaced says when to come back, and is obeyed; one that went
  // away is waited for, up to the connect timeout, and asked again, three times. Where there are
  // several, one that drains or is gone is left at once for the next one, and asked again later.
  absl::Status Call(Route& route, absl::string_view method, Time until, const Attempt& attempt);

  // The parts of it, for calls that go on where they stopped.
  //
  // One attempt, if the breaker lets it. Where nobody answered, `gone` is set; where time is up in
  // it, the error says what the attempt before was refused with.
  absl::Status Once(Route& route, absl::string_view method, Time until, const Attempt& attempt,
                    bool& gone);
  // Returns once a server answers at the address; UNREACHABLE if none does within the connect
  // timeout, with what `gone` said, which Once returned.
  absl::Status AwaitReturn(Route& route, absl::string_view method, Time until,
                           const absl::Status& gone);
  // Goes on to the next server if this one drains; else sleeps for as long as `error` asks, and
  // somewhat longer; false: it does not ask, or `until` would have passed.
  bool Obey(Route& route, const absl::Status& error, absl::string_view method, Time until);

  // Sleeps a moment, longer at each further attempt, at random: whoever was cut off with us does
  // not come back with us.
  void Pause(int attempt, Time until);

  ClientCounters counters() const;
  void CountUpload(bool resumed);

 private:
  absl::Status Admit(Route& route, absl::string_view method, Time until);
  absl::Status CheckTime(absl::string_view method, Time until) const;
  absl::Status TryOnce(Route& route, absl::string_view method, Time until, const Attempt& attempt,
                       bool& gone);
  // Whom `route` asks now: without asking, but names are looked up.
  absl::Status Choose(Route& route, std::chrono::milliseconds patience);
  // Returns once somebody answers, within the connect timeout; `probe`: the breaker's, for that of
  // probes.
  absl::Status Find(Route& route, absl::string_view method, Time until, bool probe);
  absl::Status FindOne(Route& route, std::chrono::milliseconds patience);
  grpc::Status Attempted(Route& route, Time until, const Attempt& attempt);
  void Take(Route& route, std::shared_ptr<ServerChannel> server);
  // Goes on to a server of which nothing bad is known, if there is one.
  bool Leave(Route& route, std::chrono::milliseconds least);
  void NobodyAnswered();
  void Answered();
  // One line to the log, once for each `cause` until the address answers again.
  void Degraded(absl::string_view cause, absl::string_view text);
  std::string Where(absl::string_view method) const;

  const ClientOptions options_;
  ServerChannels channels_;
  CircuitBreaker breaker_;
  std::mutex logged_mutex_;
  std::set<std::string> logged_;
  std::atomic<int64_t> retries_{0}, moves_{0}, waits_{0}, breaker_opens_{0}, fast_failures_{0},
      uploads_{0}, resumed_uploads_{0};
};

}  // namespace bucketd::client
