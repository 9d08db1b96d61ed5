// Preloaded where the thread sanitizer runs: Debian's Abseil is not instrumented, so that the
// sanitizer sees no lock of ours; with this it does. Whoever locks sees what was done by whoever
// unlocked before.
#include <dlfcn.h>

#include <atomic>

#include "absl/synchronization/mutex.h"

// Absent in programs that are not instrumented, which are started, too.
extern "C" void __tsan_acquire(void* address) __attribute__((weak));
extern "C" void __tsan_release(void* address) __attribute__((weak));

namespace {

void Locked(void* mutex) {
  if (__tsan_acquire != nullptr) __tsan_acquire(mutex);
}
void Unlocks(void* mutex) {
  if (__tsan_release != nullptr) __tsan_release(mutex);
}

// The library's own; a function of theirs is found once.
template <typename Function>
Function* Next(std::atomic<Function*>& known, const char* symbol) {
  if (known == nullptr) known = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol));
  return known;
}

}  // namespace

#define BUCKETD_NEXT(symbol, result, ...)              \
  (*[] {                                               \
    static std::atomic<result (*)(__VA_ARGS__)> known; \
    return Next<result(__VA_ARGS__)>(known, symbol);   \
  }())

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  BUCKETD_NEXT("_ZN4absl7debian35Mutex4LockEv", void, Mutex*)(this);
  Locked(this);
}
void Mutex::Unlock() {
  Unlocks(this);
  BUCKETD_NEXT("_ZN4absl7debian35Mutex6UnlockEv", void, Mutex*)(this);
}
bool Mutex::TryLock() {
  const bool locked = BUCKETD_NEXT("_ZN4absl7debian35Mutex7TryLockEv", bool, Mutex*)(this);
  if (locked) Locked(this);
  return locked;
}
void Mutex::ReaderLock() {
  BUCKETD_NEXT("_ZN4absl7debian35Mutex10ReaderLockEv", void, Mutex*)(this);
  Locked(this);
}
void Mutex::ReaderUnlock() {
  Unlocks(this);
  BUCKETD_NEXT("_ZN4absl7debian35Mutex12ReaderUnlockEv", void, Mutex*)(this);
}
void Mutex::Await(const Condition& condition) {
  Unlocks(this);
  BUCKETD_NEXT("_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE", void, Mutex*, const Condition&)
  (this, condition);
  Locked(this);
}
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  Unlocks(this);
  const bool came =
      BUCKETD_NEXT("_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool,
                   Mutex*, const Condition&, Duration)(this, condition, timeout);
  Locked(this);
  return came;
}
void CondVar::Wait(Mutex* mutex) {
  Unlocks(mutex);
  BUCKETD_NEXT("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE", void, CondVar*, Mutex*)(this, mutex);
  Locked(mutex);
}
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  Unlocks(mutex);
  const bool late =
      BUCKETD_NEXT("_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool,
                   CondVar*, Mutex*, Duration)(this, mutex, timeout);
  Locked(mutex);
  return late;
}
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  Unlocks(mutex);
  const bool late =
      BUCKETD_NEXT("_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool,
                   CondVar*, Mutex*, Time)(this, mutex, deadline);
  Locked(mutex);
  return late;
}

ABSL_NAMESPACE_END
}  // namespace absl
