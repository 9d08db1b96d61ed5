// A network that breaks: a relay in front of a server that cuts its first connections after so many
// bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace bucketd {

class Relay {
 public:
  // Listens on the unix socket `path` and passes bytes on to the one at `to`. Connection k ends,
  // both ways, once more than cuts[k] bytes have come from the client; further ones live on.
  Relay(const std::string& path, std::string to, std::vector<int64_t> cuts);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int cut() const { return cut_; }  // connections that were

 private:
  void Accept();
  void Pass(int from, int to, int64_t limit);
  void AwaitQuiet();

  const std::string to_;
  const std::vector<int64_t> cuts_;
  std::atomic<int> cut_{0};
  int listener_ = -1;
  std::mutex mutex_;
  std::mutex said_mutex_;
  std::condition_variable said_;
  int64_t passed_ = 0;  // pieces, both ways
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace bucketd
