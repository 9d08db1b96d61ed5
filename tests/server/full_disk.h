// A disk without room, for as long as it lives: every write of this process behind so many bytes of
// a file fails.
#pragma once

#include <signal.h>

#include "gtest/gtest.h"
#include <sys/resource.h>

namespace bucketd {

class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes = 1) {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &ignore, &signal_);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &limit_), 0);
    const rlimit full{bytes, limit_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    sigaction(SIGXFSZ, &signal_, nullptr);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  struct sigaction signal_ {};
  rlimit limit_{};
};

}  // namespace bucketd
