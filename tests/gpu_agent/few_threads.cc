#include "tests/gpu_agent/few_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

namespace {

thread_local int left = -1;  // -1: as many as the machine has

}  // namespace

// In the place of the C library's, for all of the program.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  static const auto start =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (left == 0) return EAGAIN;
  if (left > 0) --left;
  return start(thread, attributes, run, argument);
}

namespace bucketd::agent {

FewThreads::FewThreads(int more) { left = more; }
FewThreads::~FewThreads() { left = -1; }

}  // namespace bucketd::agent
