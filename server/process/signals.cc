#include "server/process/signals.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

namespace bucketd {
namespace {

sigset_t Stopping() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// A descriptor that becomes readable when the parent ends. PR_SET_PDEATHSIG would fire when the
// thread that started us ends, and training programs start us from short-lived threads; it is what
// is left where the kernel or a sandbox has no pidfd_open.
absl::StatusOr<int> WatchParent(pid_t parent) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, parent, 0));
  if (fd < 0 && errno != ESRCH && prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) {
    return absl::UnavailableError(absl::StrCat("--exit-with-parent: ", std::strerror(errno)));
  }
  // Asked last: had the parent ended before the watch began, we would have another one by now.
  if (getppid() != parent) {
    if (fd >= 0) close(fd);
    return absl::FailedPreconditionError(absl::StrCat("--exit-with-parent: process ", parent,
                                                      " is not the parent of this one; ", getppid(),
                                                      " is"));
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StopSignals>> StopSignals::Create(pid_t parent) {
  auto signals = std::unique_ptr<StopSignals>(new StopSignals());
  const sigset_t stopping = Stopping();
  pthread_sigmask(SIG_BLOCK, &stopping, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // to who writes it, a file that may not grow is a full disk
  signals->signal_fd_ = signalfd(-1, &stopping, SFD_CLOEXEC);
  if (signals->signal_fd_ < 0) {
    return absl::InternalError(absl::StrCat("signalfd: ", std::strerror(errno)));
  }
  signals->ended_fd_ = eventfd(0, EFD_CLOEXEC);
  if (signals->ended_fd_ < 0) {
    return absl::InternalError(absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  if (parent != 0) {
    const absl::StatusOr<int> fd = WatchParent(parent);
    if (!fd.ok()) return fd.status();
    signals->parent_fd_ = *fd;
  }
  return signals;
}

StopSignals::~StopSignals() {
  if (signal_fd_ >= 0) close(signal_fd_);
  if (parent_fd_ >= 0) close(parent_fd_);
  if (ended_fd_ >= 0) close(ended_fd_);
}

StopSignals::Cause StopSignals::Wait() {
  // poll() skips negative descriptors.
  std::array<pollfd, 3> fds = {
      {{signal_fd_, POLLIN, 0}, {parent_fd_, POLLIN, 0}, {ended_fd_, POLLIN, 0}}};
  while (poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
  }
  if (fds[0].revents == 0) return fds[1].revents != 0 ? Cause::kParentGone : Cause::kEnded;
  signalfd_siginfo info{};
  const ssize_t taken = read(signal_fd_, &info, sizeof(info));
  return taken == sizeof(info) ? Cause::kSignal : Cause::kParentGone;
}

void StopSignals::Ended() { eventfd_write(ended_fd_, 1); }

void StopSignals::RestoreDefaults() {
  const sigset_t stopping = Stopping();
  pthread_sigmask(SIG_UNBLOCK, &stopping, nullptr);
}

}  // namespace bucketd
