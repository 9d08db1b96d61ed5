#include "tests/gpu_agent/set_clocks.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"
#include <sys/syscall.h>

namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::array<std::atomic<int64_t>, 16> off{};  // nanoseconds, by clock

timespec OfTheMachine(clockid_t clock, int& answer) {
  timespec now{};
  answer = static_cast<int>(syscall(SYS_clock_gettime, clock, &now));
  return now;
}

}  // namespace

// In the place of the C library's, for all of the program.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  int answer = 0;
  *time = OfTheMachine(clock, answer);
  if (clock < 0 || static_cast<size_t>(clock) >= off.size()) return answer;
  const int64_t now = time->tv_sec * kSecond + time->tv_nsec + off[static_cast<size_t>(clock)];
  *time = {now / kSecond, now % kSecond};
  return answer;
}

namespace bucketd::agent {

ClockIsOff::ClockIsOff(clockid_t clock, absl::Duration by) : clock_(clock) { Set(by); }

ClockIsOff::~ClockIsOff() { Set(absl::ZeroDuration()); }

void ClockIsOff::Set(absl::Duration by) const {
  off[static_cast<size_t>(clock_)] = absl::ToInt64Nanoseconds(by);
  if (clock_ != CLOCK_REALTIME) return;
  int answer = 0;
  absl::Duration wrong;
  do {
    absl::SleepFor(absl::Milliseconds(20));
    wrong = absl::Now() - absl::TimeFromTimespec(OfTheMachine(CLOCK_REALTIME, answer)) - by;
  } while (absl::AbsDuration(wrong) > absl::Seconds(5));
}

}  // namespace bucketd::agent
