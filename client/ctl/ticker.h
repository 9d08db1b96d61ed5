// Says on a terminal that something long is under way, and for how long.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace bucketd::ctl {

// From its second second on, a line on stderr with the seconds, renewed in place and gone with the
// ticker: whatever else goes to the terminal comes after it. Nothing where stderr is no terminal.
class Ticker {
 public:
  explicit Ticker(std::string what);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void Run();

  const std::string what_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace bucketd::ctl
