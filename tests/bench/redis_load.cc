#include "tests/bench/redis_load.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/un.h>

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMaxConnections = 64;
constexpr char kGet[] = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

int Connect(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

bool WriteAll(int fd, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = write(fd, bytes.data() + at, bytes.size() - at);
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

struct Connection {
  int fd = -1;
  size_t have = 0;  // of the reply that is coming
  std::deque<Clock::time_point> sent;

  bool Send() {
    sent.push_back(Clock::now());
    return WriteAll(fd, kGet);
  }
};

}  // namespace

bool RedisSet(const std::string& path, const std::string& value) {
  const int fd = Connect(path);
  if (fd < 0) return false;
  bool set = WriteAll(
      fd, absl::StrCat("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$", value.size(), "\r\n", value, "\r\n"));
  char answer[5] = {};
  set = set && read(fd, answer, sizeof(answer)) == 5 && std::string(answer, 3) == "+OK";
  close(fd);
  return set;
}

LoadResult RedisGets(const std::string& path, size_t value_bytes, int outstanding, double seconds) {
  LoadResult result;
  const size_t reply_bytes = absl::StrCat("$", value_bytes, "\r\n").size() + value_bytes + 2;
  std::vector<Connection> connections(static_cast<size_t>(std::min(outstanding, kMaxConnections)));
  std::vector<pollfd> polls;
  for (Connection& c : connections) {
    c.fd = Connect(path);
    polls.push_back({c.fd, POLLIN, 0});
  }
  for (int i = 0; i < outstanding; ++i) {
    if (!connections[static_cast<size_t>(i) % connections.size()].Send()) ++result.failed;
  }
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  std::vector<char> buffer(1 << 20);
  for (int open = outstanding; open > 0;) {
    if (poll(polls.data(), polls.size(), 10'000) <= 0) {
      ++result.failed;
      break;
    }
    for (size_t i = 0; i < polls.size(); ++i) {
      Connection& c = connections[i];
      if ((polls[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      const ssize_t n = read(c.fd, buffer.data(), buffer.size());
      if (n <= 0) {
        ++result.failed;
        open = 0;
        break;
      }
      c.have += static_cast<size_t>(n);
      for (; c.have >= reply_bytes; c.have -= reply_bytes) {
        const Clock::time_point now = Clock::now();
        ++result.requests;
        result.micros.push_back(
            std::chrono::duration<float, std::micro>(now - c.sent.front()).count());
        c.sent.pop_front();
        if (now < end) {
          c.Send();
        } else {
          --open;
        }
      }
    }
  }
  for (const Connection& c : connections) close(c.fd);
  return result;
}

}  // namespace bucketd
