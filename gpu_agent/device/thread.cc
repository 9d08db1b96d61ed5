#include "gpu_agent/device/thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bucketd::agent {
namespace {

// Signals are for the program's own threads, except those that this thread's own code raises and
// a profiler's.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) {
      sigdelset(&all, own);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

absl::StatusOr<std::jthread> StartThread(const std::string& name,
                                         std::function<void(const std::stop_token&)> work) {
  const SignalsBlocked blocked;
  try {
    std::jthread thread(std::move(work));
    pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return thread;
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread for ", name, ": ", error.what(),
                     "; raise what bounds them: ulimit -u, or the container's pids limit"));
  }
}

}  // namespace bucketd::agent
