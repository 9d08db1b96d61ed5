#include "client/ctl/ticker.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace bucketd::ctl {

Ticker::Ticker(std::string what) : what_(std::move(what)) {
  if (isatty(STDERR_FILENO) != 0) thread_ = std::thread(&Ticker::Run, this);
}

Ticker::~Ticker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  over_.notify_one();
  thread_.join();
}

void Ticker::Run() {
  constexpr std::chrono::seconds kPeriod(1);
  std::unique_lock<std::mutex> lock(mutex_);
  int seconds = 0;
  while (!over_.wait_for(lock, kPeriod, [this] { return done_; })) {
    std::fprintf(stderr, "\r%s: %d s", what_.c_str(), ++seconds);
    std::fflush(stderr);
  }
  if (seconds > 0) std::fputs("\r\033[K", stderr);
}

}  // namespace bucketd::ctl
