// What gRPC promises, told to the thread sanitizer: a callback, of a reactor or of a call, begins
// after everything that was done before the operation that it ends was started. Distributions'
// gRPC is not instrumented, so the sanitizer does not see it happen. Without that sanitizer both do
// nothing.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace bucketd {

// Before a reactor's Start... or Finish, before a call is made, and where a constructor ends.
inline void HandToGrpc([[maybe_unused]] void* reactor) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(reactor);
#endif
}

// First thing in a callback.
inline void TakeFromGrpc([[maybe_unused]] void* reactor) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(reactor);
#endif
}

}  // namespace bucketd
