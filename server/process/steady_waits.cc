#include "server/process/steady_waits.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>

namespace {

constexpr int64_t kSecond = 1'000'000'000;

using Syscall = long (*)(long number, ...);

// No local that is made once: the guard of those waits by syscall, too.
Syscall Next() {
  static std::atomic<Syscall> next{nullptr};
  if (next == nullptr) next = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));
  return next;
}

int64_t Now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

timespec Steady(const timespec& wall) {
  const int64_t left = wall.tv_sec * kSecond + wall.tv_nsec - Now(CLOCK_REALTIME);
  const int64_t until = std::max<int64_t>(0, Now(CLOCK_MONOTONIC) + left);
  return {until / kSecond, until % kSecond};
}

}  // namespace

extern "C" long syscall(long number, ...) {
  long a[6];
  va_list given;
  va_start(given, number);
  for (long& argument : a) argument = va_arg(given, long);
  va_end(given);
  const bool waits = number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
  if (!waits || (a[1] & FUTEX_CLOCK_REALTIME) == 0 || a[3] == 0) {
    return Next()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  const timespec until = Steady(*reinterpret_cast<const timespec*>(a[3]));
  return Next()(number, a[0], a[1] & ~FUTEX_CLOCK_REALTIME, a[2], &until, a[4], a[5]);
}

namespace bucketd {

void MakeWaitsSteady() {}

}  // namespace bucketd
