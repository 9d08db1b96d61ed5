// How long is left until a deadline, by a clock that nobody sets. Callers name a deadline by the
// wall clock; whoever waits for it turns it into a steady one first, so that a wall clock that is
// set meanwhile makes the wait neither longer nor shorter.
#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace bucketd::agent {

using SteadyTime = std::chrono::steady_clock::time_point;

inline SteadyTime SteadyNow() { return std::chrono::steady_clock::now(); }

// So much from now; at most a year, which the clock can always hold. What is over is now.
inline SteadyTime SteadyIn(absl::Duration left) {
  constexpr absl::Duration kMost = absl::Hours(24 * 365);
  return SteadyNow() + absl::ToChronoNanoseconds(std::clamp(left, absl::ZeroDuration(), kMost));
}

inline SteadyTime SteadyAt(absl::Time deadline) { return SteadyIn(deadline - absl::Now()); }

// For poll: rounded up, and at most an hour, so that it may be asked again.
inline int MillisecondsUntil(SteadyTime time) {
  using std::chrono::milliseconds;
  const milliseconds left = std::chrono::ceil<milliseconds>(time - SteadyNow());
  return static_cast<int>(
      std::clamp(left, milliseconds(0), milliseconds(std::chrono::hours(1))).count());
}

// Asks whether it is over again and again, with pauses that grow from 5 us to `longest`, until it
// is or time is up. Whether it was over.
template <typename Over>
bool AskUntil(SteadyTime time, absl::Duration longest, const Over& over) {
  for (absl::Duration pause = absl::Microseconds(5);; pause = std::min(2 * pause, longest)) {
    if (over()) return true;
    if (SteadyNow() >= time) return false;
    absl::SleepFor(pause);
  }
}

// What to tell whoever takes a time of the wall clock.
inline absl::Time WallTime(SteadyTime time) {
  return absl::Now() + absl::FromChrono(time - SteadyNow());
}

}  // namespace bucketd::agent
