#include "tests/client/relay.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/un.h>

namespace bucketd {
namespace {

sockaddr_un Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

bool SendAll(int to, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(to, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

Relay::Relay(const std::string& path, std::string to, std::vector<int64_t> cuts)
    : to_(std::move(to)), cuts_(std::move(cuts)), listener_(socket(AF_UNIX, SOCK_STREAM, 0)) {
  const sockaddr_un address = Address(path);
  EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener_, 16), 0);
  acceptor_ = std::thread([this] { Accept(); });
}

Relay::~Relay() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const int s : sockets_) shutdown(s, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
  for (const int s : sockets_) close(s);
  close(listener_);
}

void Relay::Accept() {
  const sockaddr_un address = Address(to_);
  for (size_t k = 0;; ++k) {
    const int client = accept(listener_, nullptr, nullptr);
    if (client < 0) return;
    const int server = socket(AF_UNIX, SOCK_STREAM, 0);
    const std::lock_guard lock(mutex_);
    sockets_.push_back(client);
    sockets_.push_back(server);
    if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      shutdown(client, SHUT_RDWR);
      continue;
    }
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    const int64_t limit = k < cuts_.size() ? cuts_[k] : kNever;
    threads_.emplace_back([this, client, server, limit] { Pass(client, server, limit); });
    threads_.emplace_back([this, client, server] { Pass(server, client, kNever); });
  }
}

void Relay::AwaitQuiet() {
  std::unique_lock lock(said_mutex_);
  int64_t before = -1;
  while (before != passed_) {
    before = passed_;
    said_.wait_for(lock, std::chrono::milliseconds(500), [&] { return before != passed_; });
  }
}

void Relay::Pass(int from, int to, int64_t limit) {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = recv(from, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    limit -= got;
    if (limit < 0) {
      AwaitQuiet();
      ++cut_;
      break;
    }
    {
      const std::lock_guard lock(said_mutex_);
      ++passed_;
    }
    said_.notify_all();
    if (!SendAll(to, buffer.data(), static_cast<size_t>(got))) break;
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

}  // namespace bucketd
