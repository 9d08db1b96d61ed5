#include "server/rpc/connection_guard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include <sys/socket.h>
#include <sys/syscall.h>

#include "server/base/host.h"
#include "server/base/shares.h"
#include "server/rpc/client_frames.h"

namespace bucketd {
namespace {

constexpr std::chrono::seconds kSuspectFor{60};
constexpr size_t kMaxSuspects = 4096;

class Guard {
 public:
  // False: there is no place for it.
  bool Accepted(int fd, const std::string& host) {
    const SteadyTime now = std::chrono::steady_clock::now();
    const FrameLimits frames = IsSuspect(host, now) ? kSuspectLimits : FrameLimits();
    const std::optional<Shares::Id> id = TakePlace(fd, host);
    if (!id.has_value()) return false;
    auto connection = std::make_unique<Connection>(
        Connection{*id, host, ClientFrames(LimitsWith(frames), now, host)});
    Shard& shard = ShardOf(fd);
    const absl::MutexLock lock(&shard.mutex);
    shard.connections.insert_or_assign(fd, std::move(connection));
    if (static_cast<size_t>(fd) < seen_.size()) seen_[static_cast<size_t>(fd)] = true;
    return true;
  }

  // False: the connection is to end.
  bool Received(int fd, const msghdr& message, size_t bytes) {
    return Look(fd, [&](ClientFrames& frames) {
      const SteadyTime now = std::chrono::steady_clock::now();
      ClientFrames::Verdict verdict = ClientFrames::Verdict::kGoOn;
      ForParts(message, bytes, [&](absl::string_view part, size_t room) {
        verdict = frames.Received(part, room, now);
        return verdict == ClientFrames::Verdict::kGoOn;
      });
      return verdict;
    });
  }
  bool Sent(int fd, const msghdr& message, size_t bytes) {
    return Look(fd, [&](ClientFrames& frames) {
      size_t wanted = 0;
      for (size_t i = 0; i < message.msg_iovlen; ++i) wanted += message.msg_iov[i].iov_len;
      ForParts(message, bytes, [&](absl::string_view part, size_t) {
        frames.Sent(part);
        return true;
      });
      return frames.HasSent(/*stuck=*/bytes < wanted);
    });
  }

  // Of any file. A child that was forked may close all that it has: no lock where there is no need.
  void Ended(int fd) {
    if (fd < 0) return;
    const auto number = static_cast<size_t>(fd);
    if (number < seen_.size() && !seen_[number].exchange(false)) return;
    std::unique_ptr<Connection> ended;
    {
      Shard& shard = ShardOf(fd);
      const absl::MutexLock lock(&shard.mutex);
      const auto found = shard.connections.find(fd);
      if (found == shard.connections.end()) return;
      ended = std::move(found->second);
      shard.connections.erase(found);
    }
    const absl::MutexLock lock(&mutex_);
    LeavePlace(ended->id);
  }

  void Set(std::function<void()> on_closed, ConnectionLimits limits) {
    const absl::MutexLock lock(&mutex_);
    on_closed_ = std::move(on_closed);
    limits_ = std::move(limits);
  }

 private:
  struct Connection {
    Shares::Id id = 0;
    std::string host;
    ClientFrames frames;
    bool over = false;
  };
  struct Place {
    int fd = -1;
    std::string host;
  };
  struct Shard {
    absl::Mutex mutex;
    absl::flat_hash_map<int, std::unique_ptr<Connection>> connections ABSL_GUARDED_BY(mutex);
  };

  // look(frames): the verdict on what came or went. False: the connection is to end.
  template <typename LookAt>
  bool Look(int fd, const LookAt& look) {
    Shard& shard = ShardOf(fd);
    std::string host;
    ClientFrames::Verdict verdict = ClientFrames::Verdict::kGoOn;
    {
      const absl::MutexLock lock(&shard.mutex);
      const auto found = shard.connections.find(fd);
      if (found == shard.connections.end()) return true;
      Connection& connection = *found->second;
      // gRPC hands on what it has read before an error and reads again, to get the error again.
      if (connection.over) return false;
      verdict = look(connection.frames);
      if (verdict == ClientFrames::Verdict::kGoOn) return true;
      connection.over = true;
      host = connection.host;
    }
    Closed(host, verdict == ClientFrames::Verdict::kFlood);
    return false;
  }

  // Calls body(part, room) for the buffers that `bytes` fill, until it returns false: each may have
  // more room than it has bytes.
  template <typename Body>
  static void ForParts(const msghdr& message, size_t bytes, const Body& body) {
    for (size_t i = 0; i < message.msg_iovlen && bytes > 0; ++i) {
      const size_t room = message.msg_iov[i].iov_len;
      const size_t part = std::min(bytes, room);
      if (!body({static_cast<const char*>(message.msg_iov[i].iov_base), part}, room)) return;
      bytes -= part;
    }
  }

  Shard& ShardOf(int fd) { return shards_[static_cast<size_t>(fd) % shards_.size()]; }

  bool IsSuspect(const std::string& host, SteadyTime now) {
    const absl::MutexLock lock(&mutex_);
    const auto found = suspects_.find(host);
    return found != suspects_.end() && now < found->second;
  }

  ClientFrames::Limits LimitsWith(const FrameLimits& frames) {
    const absl::MutexLock lock(&mutex_);
    return {frames, limits_.calls, limits_.unfinished};
  }

  // Where all places are taken, the newest of the host that has most gives way: gRPC finds it
  // ended.
  std::optional<Shares::Id> TakePlace(int fd, const std::string& host) {
    Shares::Id id = 0;
    Shares::Id displaced = 0;
    int its_fd = -1;
    {
      const absl::MutexLock lock(&mutex_);
      if (limits_.connections > 0 && static_cast<int64_t>(places_.size()) >= limits_.connections) {
        if (on_closed_ != nullptr) on_closed_();
        displaced = shares_.GivesWayTo({host});
        if (displaced == 0) return std::nullopt;
        its_fd = places_.at(displaced).fd;
        LeavePlace(displaced);
      }
      id = ++last_id_;
      places_.emplace(id, Place{fd, host});
      shares_.Add({host}, id);
    }
    if (displaced != 0) Shut(its_fd, displaced);
    return id;
  }

  void LeavePlace(Shares::Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto place = places_.find(id);
    if (place == places_.end()) return;  // gave way
    shares_.Remove({place->second.host}, id);
    places_.erase(place);
  }

  // It is closed only once it has left its shard, so `fd` is nobody else's.
  void Shut(int fd, Shares::Id id) {
    Shard& shard = ShardOf(fd);
    const absl::MutexLock lock(&shard.mutex);
    const auto found = shard.connections.find(fd);
    if (found != shard.connections.end() && found->second->id == id) shutdown(fd, SHUT_RDWR);
  }

  void Closed(const std::string& host, bool flooded) {
    const absl::MutexLock lock(&mutex_);
    if (on_closed_ != nullptr) on_closed_();
    if (!flooded) return;
    const SteadyTime now = std::chrono::steady_clock::now();
    if (suspects_.size() >= kMaxSuspects) {
      absl::erase_if(suspects_, [now](const auto& suspect) { return suspect.second <= now; });
    }
    if (suspects_.size() < kMaxSuspects) suspects_[host] = now + kSuspectFor;
  }

  std::array<Shard, 16> shards_;
  std::array<std::atomic<bool>, 1 << 16> seen_{};  // which of the first numbers are connections
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, SteadyTime> suspects_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_closed_ ABSL_GUARDED_BY(mutex_);
  ConnectionLimits limits_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Shares::Id, Place> places_ ABSL_GUARDED_BY(mutex_);
  Shares shares_ ABSL_GUARDED_BY(mutex_);  // of places_
  Shares::Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Of the process, as the functions are. Never destroyed: gRPC's threads may read until the end.
Guard& TheGuard() {
  static auto* const guard = new Guard;
  return *guard;
}

}  // namespace

void GuardConnections(std::function<void()> on_closed, ConnectionLimits limits) {
  TheGuard().Set(std::move(on_closed), std::move(limits));
}

}  // namespace bucketd

extern "C" {

int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  while (true) {
    const auto fd = static_cast<int>(syscall(SYS_accept4, listener, address, length, flags));
    if (fd < 0) {
      // gRPC takes what it does not know for the end of its listener.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) errno = EAGAIN;
      return fd;
    }
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
      peer.ss_family = AF_UNSPEC;
    }
    if (bucketd::TheGuard().Accepted(fd, bucketd::HostOf(peer))) return fd;
    syscall(SYS_close, fd);
  }
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t bytes = syscall(SYS_recvmsg, fd, message, flags);
  if (bytes <= 0 || (flags & MSG_PEEK) != 0) return bytes;
  if (bucketd::TheGuard().Received(fd, *message, static_cast<size_t>(bytes))) return bytes;
  errno = ECONNRESET;
  return -1;
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const ssize_t bytes = syscall(SYS_sendmsg, fd, message, flags);
  const int error = errno;
  if (bytes < 0 && error != EAGAIN) return bytes;
  const bool goes_on =
      bucketd::TheGuard().Sent(fd, *message, static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  errno = goes_on ? error : ECONNRESET;
  return goes_on ? bytes : -1;
}

// Before its number is another one's.
int close(int fd) {
  bucketd::TheGuard().Ended(fd);
  return static_cast<int>(syscall(SYS_close, fd));
}

}  // extern "C"
