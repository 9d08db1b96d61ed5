// Stops asking an address that does not answer, so that a job with hundreds of graphs waits for it
// a few times and not hundreds of times.
//
//   closed     every call goes out
//   open       after `failures` calls in a row, none older than `window`, that nobody answered:
//              calls are refused at once for `cooldown`, lengthened by up to half at random so that
//              the ranks of a job do not come back together
//   half-open  then one call is a probe and the others are still refused; if the probe is answered
//              the breaker closes, else it is open for another cooldown
#pragma once

#include <chrono>
#include <deque>
#include <mutex>

#include "absl/random/random.h"

namespace bucketd::client {

struct BreakerOptions {
  int failures = 2;
  std::chrono::milliseconds window{120'000};
  std::chrono::milliseconds cooldown{30'000};
};

// Thread-safe.
class CircuitBreaker {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Admission { kCall, kProbe, kRefused };

  explicit CircuitBreaker(const BreakerOptions& options) : options_(options) {}

  // kProbe: this caller must report what came of it, Succeeded or Failed, for others to be let in.
  Admission Admit(Time now);
  // Somebody answered, whatever the answer. True: it was not closed before.
  bool Succeeded();
  // Nobody answered. True: it opened, or stays open after a probe.
  bool Failed(Time now);

  // How long from `now` until the next probe may go out; 0 if one may, or is under way.
  std::chrono::milliseconds Remaining(Time now) const;

 private:
  const BreakerOptions options_;
  mutable std::mutex mutex_;
  std::deque<Time> failed_;  // in a row, the latest last
  bool open_ = false;
  bool probing_ = false;
  Time until_;  // where open_: of the cooldown
  absl::BitGen random_;
};

}  // namespace bucketd::client
