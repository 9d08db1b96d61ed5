#include "gpu_agent/comm/ring_connect.h"

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "gpu_agent/comm/endpoint.h"
#include "gpu_agent/device/steady.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr size_t kMinToken = 16;
constexpr size_t kMaxGroup = 128;
constexpr size_t kMaxCallers = 16;  // in a handshake at once; the oldest makes room
constexpr absl::Duration kCallerTime = absl::Seconds(5);
constexpr absl::Duration kFirstPause = absl::Milliseconds(2);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);  // between questions, too

absl::Status CheckTransport(const RingConnectOptions& options) {
  if (options.unix_folder.empty() != options.tcp_interface.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("a ring wants either unix_folder or tcp_interface");
}

absl::Status Check(const RingConnectOptions& options) {
  const RingIdentity& self = options.self;
  if (self.size < 1 || self.rank < 0 || self.rank >= self.size) {
    return absl::InvalidArgumentError(Describe(self) + ": expected a rank below the size");
  }
  if (self.group.empty() || self.group.size() > kMaxGroup ||
      self.group.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("a group's name has 1 to 128 bytes and no zero byte");
  }
  if (options.token.size() < kMinToken) {
    return absl::InvalidArgumentError("a ring's token has at least 16 bytes");
  }
  return CheckTransport(options);
}

// "" for unix sockets.
absl::StatusOr<std::string> AddressOf(const RingConnectOptions& options) {
  if (options.tcp_interface.empty()) return std::string();
  return LocalAddress(options.tcp_interface);
}

bool IsAbsence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsNotFound(status);
}

// How much an error tells of the neighbour that did not come: that nobody was there, that somebody
// was who proved nothing, or who it was.
int Telling(const absl::Status& status) {
  if (status.ok()) return -1;
  if (IsAbsence(status)) return 0;
  return absl::IsUnauthenticated(status) ? 1 : 2;
}

class Connector {
 public:
  Connector(const RingConnectOptions& options, std::string local_address,
            const EndpointOf& endpoint_of)
      : options_(options),
        deadline_(SteadyAt(options.deadline)),
        local_address_(std::move(local_address)),
        endpoint_of_(endpoint_of) {}

  absl::StatusOr<RingPeers> Run(const Listener& listener) {
    while (!left_ || !right_) {
      const SteadyTime now = SteadyNow();
      if (now >= deadline_) return GaveUp();
      if (options_.still_come != nullptr) RETURN_IF_ERROR(options_.still_come());
      DropSlowCallers(now);
      if (!right_ && right_dial_ == nullptr && now >= dial_at_) RETURN_IF_ERROR(DialRight());
      Sleep(listener);
      if (!left_) RETURN_IF_ERROR(AnswerCallers(listener));
      if (right_dial_ != nullptr) RETURN_IF_ERROR(AdvanceDial());
    }
    return RingPeers{
        .rank = options_.self.rank,
        .size = options_.self.size,
        .left = std::move(left_),
        .right = std::move(right_),
        .transport = local_address_.empty() ? "unix sockets" : "tcp " + local_address_};
  }

 private:
  struct Caller {
    Handshake handshake;
    SteadyTime until;
  };

  int left_rank() const {
    return (options_.self.rank + options_.self.size - 1) % options_.self.size;
  }
  int right_rank() const { return (options_.self.rank + 1) % options_.self.size; }

  // The right neighbour may not be there yet, or its endpoint may be of one that has gone.
  absl::Status DialRight() {
    const absl::StatusOr<std::string> endpoint = endpoint_of_(right_rank());
    absl::StatusOr<Fd> fd =
        endpoint.ok() ? Dial(*endpoint, local_address_) : absl::StatusOr<Fd>(endpoint.status());
    if (!fd.ok()) {
      DialAgain(fd.status());
      return absl::OkStatus();
    }
    right_dial_ = std::make_unique<Handshake>(*std::move(fd), Handshake::Role::kClient,
                                              options_.self, right_rank(), options_.token);
    dial_until_ = SteadyIn(kCallerTime);
    return AdvanceDial();
  }

  // The last that tells the most: a name stays when its connection is reset afterwards.
  void Note(const absl::Status& why) {
    if (Telling(why) >= Telling(told_)) told_ = why;
  }

  void DialAgain(const absl::Status& why) {
    Note(why);
    right_dial_.reset();
    dial_at_ = SteadyIn(pause_);
    pause_ = std::min(2 * pause_, kLongestPause);
  }

  absl::Status AdvanceDial() {
    switch (right_dial_->Advance()) {
      case Verdict::kPending:
        if (SteadyNow() >= dial_until_) {
          DialAgain(
              absl::UnavailableError(absl::StrCat("rank ", right_rank(), " does not answer")));
        }
        return absl::OkStatus();
      case Verdict::kAccepted:
        right_ = right_dial_->Take();
        right_dial_.reset();
        return absl::OkStatus();
      case Verdict::kStranger:
      case Verdict::kStale:
        DialAgain(right_dial_->error());
        return absl::OkStatus();
      case Verdict::kRefused:
      case Verdict::kMismatch:
        break;
    }
    return right_dial_->error();
  }

  absl::Status AnswerCallers(const Listener& listener) {
    for (;;) {
      absl::StatusOr<Fd> fd = listener.Accept();
      if (absl::IsResourceExhausted(fd.status())) return fd.status();
      if (!fd.ok()) {
        Note(fd.status());
        continue;
      }
      if (!*fd) break;
      if (callers_.size() == kMaxCallers) callers_.pop_front();
      callers_.push_back({Handshake(*std::move(fd), Handshake::Role::kServer, options_.self,
                                    left_rank(), options_.token),
                          SteadyIn(kCallerTime)});
    }
    for (auto caller = callers_.begin(); caller != callers_.end() && !left_;) {
      const Verdict verdict = caller->handshake.Advance();
      if (verdict == Verdict::kMismatch) return caller->handshake.error();
      if (verdict == Verdict::kAccepted) {
        left_ = caller->handshake.Take();
      } else if (verdict != Verdict::kPending) {
        Note(caller->handshake.error());
      }
      caller = verdict == Verdict::kPending ? std::next(caller) : callers_.erase(caller);
    }
    if (left_) callers_.clear();
    return absl::OkStatus();
  }

  void DropSlowCallers(SteadyTime now) {
    while (!callers_.empty() && callers_.front().until <= now) callers_.pop_front();
  }

  void Sleep(const Listener& listener) const {
    std::vector<pollfd> waits;
    SteadyTime until = deadline_;
    if (options_.still_come != nullptr) until = std::min(until, SteadyIn(kLongestPause));
    if (!left_) waits.push_back({.fd = listener.fd(), .events = POLLIN, .revents = 0});
    for (const Caller& caller : callers_) {
      waits.push_back(
          {.fd = caller.handshake.fd(), .events = caller.handshake.events(), .revents = 0});
      until = std::min(until, caller.until);
    }
    if (right_dial_ != nullptr) {
      waits.push_back({.fd = right_dial_->fd(), .events = right_dial_->events(), .revents = 0});
      until = std::min(until, dial_until_);
    } else if (!right_) {
      until = std::min(until, dial_at_);
    } else if (left_) {
      return;
    }
    poll(waits.data(), waits.size(), MillisecondsUntil(until));
  }

  absl::Status GaveUp() const {
    std::string missing;
    if (!left_) missing = absl::StrCat("left neighbour, rank ", left_rank());
    if (!right_) {
      absl::StrAppend(&missing, left_ ? "" : " and the ", "right neighbour, rank ", right_rank());
    }
    const std::string text =
        absl::StrCat(Describe(options_.self), ": no connection with the ", missing, " in time");
    if (Telling(told_) <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(text, told_.ok() ? "" : "; last: ", told_.message()));
    }
    return absl::Status(told_.code(), absl::StrCat(text, "; last: ", told_.message()));
  }

  const RingConnectOptions& options_;
  const SteadyTime deadline_;
  const std::string local_address_;
  const EndpointOf& endpoint_of_;
  Fd left_;
  Fd right_;
  std::list<Caller> callers_;  // by age
  std::unique_ptr<Handshake> right_dial_;
  SteadyTime dial_until_;  // where it is in a handshake
  SteadyTime dial_at_;     // where it is in none
  absl::Duration pause_ = kFirstPause;
  absl::Status told_;  // why nobody came so far
};

}  // namespace

absl::StatusOr<Listener> ListenForRing(const RingConnectOptions& options) {
  RETURN_IF_ERROR(CheckTransport(options));
  ASSIGN_OR_RETURN(const std::string local_address, AddressOf(options));
  if (!local_address.empty()) return Listener::OnTcp(local_address);
  return Listener::OnUnix(options.unix_folder, options.self.rank);
}

absl::StatusOr<RingPeers> ConnectRing(const RingConnectOptions& options, const Listener& listener,
                                      const EndpointOf& endpoint_of) {
  RETURN_IF_ERROR(Check(options));
  ASSIGN_OR_RETURN(std::string local_address, AddressOf(options));
  if (options.self.size == 1) return RingPeers{};
  return Connector(options, std::move(local_address), endpoint_of).Run(listener);
}

absl::StatusOr<RingPeers> ConnectRing(const RingConnectOptions& options,
                                      FolderRendezvous& rendezvous) {
  RETURN_IF_ERROR(Check(options));
  ASSIGN_OR_RETURN(const Listener listener, ListenForRing(options));
  RETURN_IF_ERROR(rendezvous.Publish(options.self.rank, listener.endpoint()));
  return ConnectRing(options, listener, [&](int rank) { return rendezvous.Lookup(rank); });
}

}  // namespace bucketd::agent
