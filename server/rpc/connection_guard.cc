#include "server/rpc/connection_guard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

namespace bucketd {
namespace {

constexpr std::chrono::seconds kSuspectFor{60};
constexpr size_t kMaxSuspects = 4096;

// The host alone: whoever comes back comes from another port.
std::string HostOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return {reinterpret_cast<const char*>(&v4.sin_addr), 4};
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    return {reinterpret_cast<const char*>(&v6.sin6_addr) + 12, 4};
  }
  return {reinterpret_cast<const char*>(&v6.sin6_addr), 8};  // a network's, not a machine's
}

// Of this socket alone, unlike its number. 0: none.
uint64_t CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size);
  return cookie;
}

class Guard {
 public:
  void Accepted(int fd, const std::string& host) {
    const SteadyTime now = std::chrono::steady_clock::now();
    const FrameLimits limits = IsSuspect(host, now) ? kSuspectLimits : FrameLimits();
    Shard& shard = ShardOf(fd);
    const absl::MutexLock lock(&shard.mutex);
    shard.connections.insert_or_assign(fd,
                                       Connection{host, CookieOf(fd), FrameBudget(limits, now)});
  }

  // False: the connection is to end.
  bool Received(int fd, const msghdr& message, size_t bytes) {
    Shard& shard = ShardOf(fd);
    std::string host;
    {
      const absl::MutexLock lock(&shard.mutex);
      const auto found = shard.connections.find(fd);
      if (found == shard.connections.end()) return true;
      const SteadyTime now = std::chrono::steady_clock::now();
      bool within = !found->second.over;
      for (size_t i = 0; i < message.msg_iovlen && bytes > 0 && within; ++i) {
        const size_t part = std::min(bytes, message.msg_iov[i].iov_len);
        within = found->second.budget.Take(
            {static_cast<const char*>(message.msg_iov[i].iov_base), part}, now);
        bytes -= part;
      }
      if (within) return true;
      // Closed without a last read, and its number now another socket's.
      if (found->second.cookie != CookieOf(fd)) {
        shard.connections.erase(found);
        return true;
      }
      // gRPC hands on what it has read before an error and reads again, to get the error again.
      if (std::exchange(found->second.over, true)) return false;
      host = found->second.host;
    }
    Closed(host);
    return false;
  }

  void Ended(int fd) {
    Shard& shard = ShardOf(fd);
    const absl::MutexLock lock(&shard.mutex);
    shard.connections.erase(fd);
  }

  void TellWhenClosed(std::function<void()> on_closed) {
    const absl::MutexLock lock(&mutex_);
    on_closed_ = std::move(on_closed);
  }

 private:
  struct Connection {
    std::string host;
    uint64_t cookie = 0;
    FrameBudget budget;
    bool over = false;
  };
  struct Shard {
    absl::Mutex mutex;
    absl::flat_hash_map<int, Connection> connections ABSL_GUARDED_BY(mutex);
  };

  Shard& ShardOf(int fd) { return shards_[static_cast<size_t>(fd) % shards_.size()]; }

  bool IsSuspect(const std::string& host, SteadyTime now) {
    const absl::MutexLock lock(&mutex_);
    const auto found = suspects_.find(host);
    return found != suspects_.end() && now < found->second;
  }

  void Closed(const std::string& host) {
    const absl::MutexLock lock(&mutex_);
    const SteadyTime now = std::chrono::steady_clock::now();
    if (suspects_.size() >= kMaxSuspects) {
      absl::erase_if(suspects_, [now](const auto& suspect) { return suspect.second <= now; });
    }
    if (suspects_.size() < kMaxSuspects) suspects_[host] = now + kSuspectFor;
    if (on_closed_ != nullptr) on_closed_();
  }

  std::array<Shard, 16> shards_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, SteadyTime> suspects_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_closed_ ABSL_GUARDED_BY(mutex_);
};

// gRPC also reads into no buffer at all; what that returns says nothing about the connection.
bool HasRoom(const msghdr& message) {
  return std::any_of(message.msg_iov, message.msg_iov + message.msg_iovlen,
                     [](const iovec& buffer) { return buffer.iov_len > 0; });
}

// Of the process, as the two functions are. Never destroyed: gRPC's threads may read until the end.
Guard& TheGuard() {
  static auto* const guard = new Guard;
  return *guard;
}

}  // namespace

void GuardConnections(std::function<void()> on_closed) {
  TheGuard().TellWhenClosed(std::move(on_closed));
}

}  // namespace bucketd

extern "C" {

int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  const auto fd = static_cast<int>(syscall(SYS_accept4, listener, address, length, flags));
  if (fd < 0) return fd;
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) peer.ss_family = AF_UNSPEC;
  bucketd::TheGuard().Accepted(fd, bucketd::HostOf(peer));
  return fd;
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t bytes = syscall(SYS_recvmsg, fd, message, flags);
  if (bytes > 0) {
    if ((flags & MSG_PEEK) != 0 ||
        bucketd::TheGuard().Received(fd, *message, static_cast<size_t>(bytes))) {
      return bytes;
    }
    errno = ECONNRESET;
    return -1;
  }
  if (bytes == 0 && bucketd::HasRoom(*message)) bucketd::TheGuard().Ended(fd);
  return bytes;
}

}  // extern "C"
