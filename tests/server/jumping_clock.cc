// To be preloaded: a wall clock that is set while its process runs. The file named by JUMPING_CLOCK
// holds how many nanoseconds it is off, as a native 64-bit integer. No other clock is touched.
// Waits until a time of that clock (Abseil's, and with them gRPC's timers) end by it, as the kernel
// has it where the machine's own clock is set: sooner where it is set forward, later where it is
// set back.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLooks = kSecond / 20;  // a wait, at whether the clock was set

using Syscall = long (*)(long number, ...);

// Without a guard: those make calls like the ones that this is for.
Syscall Next() {
  static std::atomic<Syscall> next{nullptr};
  if (next == nullptr) next = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));
  return next;
}

const std::atomic<int64_t>* MapOffset() {
  const char* path = std::getenv("JUMPING_CLOCK");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* mapped = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<const std::atomic<int64_t>*>(mapped);
}

int64_t KernelNanoseconds() {
  timespec now{};
  Next()(SYS_clock_gettime, CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

int64_t WallNanoseconds() {
  static const std::atomic<int64_t>* const offset = MapOffset();
  return KernelNanoseconds() + (offset == nullptr ? 0 : offset->load());
}

timespec TimespecOf(int64_t nanoseconds) { return {nanoseconds / kSecond, nanoseconds % kSecond}; }

long WaitUntil(const timespec& until, const long (&a)[6]) {
  while (true) {
    const int64_t left = until.tv_sec * kSecond + until.tv_nsec - WallNanoseconds();
    const timespec look = TimespecOf(KernelNanoseconds() + std::clamp<int64_t>(left, 0, kLooks));
    const long woken = Next()(SYS_futex, a[0], a[1], a[2], &look, a[4], a[5]);
    if (woken == 0 || errno != ETIMEDOUT || left <= 0) return woken;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) {
    return static_cast<int>(Next()(SYS_clock_gettime, clock, time));
  }
  *time = TimespecOf(WallNanoseconds());
  return 0;
}

int gettimeofday(timeval* time, void*) {
  const int64_t now = WallNanoseconds();
  *time = {now / kSecond, now % kSecond / 1000};
  return 0;
}

time_t time(time_t* out) {
  const time_t now = WallNanoseconds() / kSecond;
  if (out != nullptr) *out = now;
  return now;
}

long syscall(long number, ...) {
  long a[6];
  va_list given;
  va_start(given, number);
  for (long& argument : a) argument = va_arg(given, long);
  va_end(given);
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) != 0 && a[3] != 0) {
    return WaitUntil(*reinterpret_cast<const timespec*>(a[3]), a);
  }
  return Next()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // extern "C"
