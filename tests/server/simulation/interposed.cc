// The ground under simulated processes. A program's own functions come before a library's of the
// same name, so these stand in the place of the C library's clock, threads and conditions and of
// absl's locks: Timers, WorkerPool, ComputeQueue and all that lock and wait in the server run as
// they are. Where there is no simulation, nothing here waits, and the clock is the machine's.
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "absl/synchronization/mutex.h"
#include <sys/syscall.h>

#include "tests/server/simulation/threads.h"

namespace {

using bucketd::simulation::kNever;
using bucketd::simulation::Process;
using bucketd::simulation::Threads;
using bucketd::simulation::Time;

constexpr int64_t kSecond = 1'000'000'000;
// Where all clocks begin: a machine's have run for a while.
constexpr Time kSteadyBegins = std::chrono::hours(1000);
constexpr Time kWallBegins = std::chrono::seconds(1'700'000'000);

[[noreturn]] void Impossible(const char* what) {
  std::fprintf(stderr, "simulation: %s\n", what);
  std::abort();
}

// How far the clock is from the virtual time.
Time Ahead(bool wall, const Process* process) {
  const Time begins = wall ? kWallBegins : kSteadyBegins;
  if (process == nullptr) return begins;
  return begins + (wall ? process->wall_ahead : process->steady_ahead);
}

Threads& TheThreads() {
  Threads* threads = Threads::current();
  if (threads == nullptr) Impossible("somebody waits, and there are no threads to wait for");
  return *threads;
}

int WaitUntil(pthread_cond_t* condition, pthread_mutex_t* mutex, Time until) {
  pthread_mutex_unlock(mutex);
  const bool woken = TheThreads().WaitOn(condition, until);
  pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

// absl's own bits, as far as AssertHeld() looks at them.
constexpr intptr_t kHeld = 8;
constexpr intptr_t kWantedBySomebody = 4;
constexpr intptr_t kReader = 0x101;  // how many: above
constexpr intptr_t kReaders = ~intptr_t{0xff};

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) {
  const Threads* threads = Threads::current();
  if (threads == nullptr) return static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  const bool wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  const Time now = threads->now() + Ahead(wall, threads->process());
  *time = {now.count() / kSecond, now.count() % kSecond};
  return 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*start)(void*),
                   void* argument) noexcept {
  *thread = TheThreads().Start([start, argument] { start(argument); });
  return 0;
}

int pthread_join(pthread_t thread, void**) {
  TheThreads().Join(thread);
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return WaitUntil(condition, mutex, kNever);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  const bool wall = clock == CLOCK_REALTIME;
  const Time local = std::chrono::seconds(until->tv_sec) + Time(until->tv_nsec);
  return WaitUntil(condition, mutex, local - Ahead(wall, TheThreads().process()));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (Threads* threads = Threads::current()) threads->Wake(condition, Threads::Whom::kOne);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (Threads* threads = Threads::current()) threads->Wake(condition, Threads::Whom::kAll);
  return 0;
}

}  // extern "C"

namespace absl {

void Mutex::Lock() {
  while (mu_.load(std::memory_order_relaxed) != 0) {
    mu_.fetch_or(kWantedBySomebody, std::memory_order_relaxed);
    TheThreads().WaitOn(this);
  }
  mu_.store(kHeld, std::memory_order_relaxed);
}

bool Mutex::TryLock() {
  if (mu_.load(std::memory_order_relaxed) != 0) return false;
  mu_.store(kHeld, std::memory_order_relaxed);
  return true;
}

void Mutex::Unlock() {
  const bool is_wanted = (mu_.load(std::memory_order_relaxed) & kWantedBySomebody) != 0;
  mu_.store(0, std::memory_order_relaxed);
  if (is_wanted) TheThreads().Wake(this, Threads::Whom::kAll);
}

void Mutex::ReaderLock() {
  while ((mu_.load(std::memory_order_relaxed) & kHeld) != 0) {
    mu_.fetch_or(kWantedBySomebody, std::memory_order_relaxed);
    TheThreads().WaitOn(this);
  }
  mu_.store((mu_.load(std::memory_order_relaxed) & ~intptr_t{1}) + kReader,
            std::memory_order_relaxed);
}

void Mutex::ReaderUnlock() {
  const intptr_t before = mu_.load(std::memory_order_relaxed);
  const intptr_t left = before - (kReader - 1);
  if ((left & kReaders) != 0) {
    mu_.store(left, std::memory_order_relaxed);
    return;
  }
  mu_.store(0, std::memory_order_relaxed);
  if ((before & kWantedBySomebody) != 0) TheThreads().Wake(this, Threads::Whom::kAll);
}

void CondVar::Wait(Mutex* mutex) {
  mutex->Unlock();
  TheThreads().WaitOn(this);
  mutex->Lock();
}

void CondVar::Signal() {
  if (Threads* threads = Threads::current()) threads->Wake(this, Threads::Whom::kOne);
}

void CondVar::SignalAll() {
  if (Threads* threads = Threads::current()) threads->Wake(this, Threads::Whom::kAll);
}

}  // namespace absl
