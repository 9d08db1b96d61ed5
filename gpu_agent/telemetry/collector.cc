#include "gpu_agent/telemetry/collector.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr std::chrono::milliseconds kPeriod{100};
constexpr std::chrono::seconds kPatience{5};  // with who connects and sends nothing
constexpr absl::Duration kLastCloses = absl::Seconds(1);

absl::Status Unavailable(const std::string& path, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("telemetry socket ", path, ": ", what));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("telemetry socket ", path, ": expected 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<Fd> Listen(const CollectorOptions& options) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(options.socket));
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  const Fd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(probe.get(), raw, sizeof(address)) == 0) {
    return Unavailable(options.socket, "another agent listens there");
  }
  struct stat found {};
  if (errno == ECONNREFUSED && lstat(options.socket.c_str(), &found) == 0 &&
      S_ISSOCK(found.st_mode)) {
    unlink(options.socket.c_str());
  }
  Fd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener || bind(listener.get(), raw, sizeof(address)) != 0 ||
      chmod(options.socket.c_str(), options.any_user ? 0666 : 0600) != 0 ||
      listen(listener.get(), 64) != 0) {
    return Unavailable(options.socket, std::strerror(errno));
  }
  return listener;
}

// Who has connected.
std::optional<ucred> PeerOf(const Fd& connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

// What came with one message.
std::vector<Fd> Descriptors(msghdr& message) {
  std::vector<Fd> came;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      came.emplace_back(fd);
    }
  }
  return came;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collector>> Collector::Start(const CollectorOptions& options,
                                                            CollectorEvents& events) {
  ASSIGN_OR_RETURN(Fd listener, Listen(options));
  Fd wake(eventfd(0, EFD_CLOEXEC));
  if (!wake) return Unavailable(options.socket, std::strerror(errno));
  ASSIGN_OR_RETURN(auto closer, HostStream::Start("closer"));
  return std::unique_ptr<Collector>(
      new Collector(options, events, std::move(closer), std::move(listener), std::move(wake)));
}

Collector::Collector(const CollectorOptions& options, CollectorEvents& events,
                     std::unique_ptr<HostStream> closer, Fd listener, Fd wake)
    : options_(options),
      events_(events),
      closer_(std::move(closer)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      thread_([this] { Run(); }) {}

Collector::~Collector() {
  stopped_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = write(wake_.get(), &one, sizeof(one));
  thread_.join();
  if (!closer_->Drain(absl::Now() + kLastCloses).ok()) {
    [[maybe_unused]] const HostStream* held = closer_.release();
  }
  unlink(options_.socket.c_str());
}

// Until there is something to do, or to the deadline.
void Collector::Poll(std::vector<pollfd>& waits, SteadyTime until) const {
  // A negative one is passed over.
  waits = {{wake_.get(), POLLIN, 0}, {accepts_ ? listener_.get() : -1, POLLIN, 0}};
  for (const Trainer& trainer : trainers_) {
    // Asked in this order: what a process has said before its end is there when that is seen.
    waits.push_back({trainer.process.get(), POLLIN, 0});
    waits.push_back({trainer.connection.get(), POLLIN, 0});
  }
  poll(waits.data(), waits.size(), MillisecondsUntil(until));
}

void Collector::Run() {
  SteadyTime next = SteadyNow();
  std::vector<pollfd> waits;
  while (!stopped_) {
    Poll(waits, next);
    const SteadyTime now = SteadyNow();
    const bool due = now >= next;
    if (due) {
      next = now + kPeriod;
      accepts_ = true;
    }
    size_t kept = 0;
    for (size_t i = 0; i < trainers_.size(); ++i) {
      Trainer& trainer = trainers_[i];
      const bool ended = trainer.ended || waits[2 * i + 2].revents != 0;
      // What it has written before it died is read after that was heard.
      const bool heard = (waits[2 * i + 3].revents == 0 || Hear(trainer)) && !ended;
      const absl::Status read =
          trainer.ring == nullptr || (heard && !due) ? absl::OkStatus() : Read(trainer);
      if (heard && read.ok() && (trainer.ring != nullptr || now < trainer.give_up)) {
        if (kept != i) std::swap(trainers_[kept], trainers_[i]);
        ++kept;
      } else {
        End(trainer, std::string(read.message()));
      }
    }
    trainers_.resize(kept);
    if (waits[1].revents != 0) Accept();
  }
  for (Trainer& trainer : trainers_) {
    const absl::Status read = trainer.ring == nullptr ? absl::OkStatus() : Read(trainer);
    End(trainer, std::string(read.message()));
  }
}

void Collector::Accept() {
  Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    // Who waits there still does, so that to ask again at once would not end.
    accepts_ = false;
    events_.Refused(absl::StrCat("it waits to be taken in: ", std::strerror(errno)));
    return;
  }
  const std::optional<ucred> peer = PeerOf(connection);
  const absl::Status may = MayReport(peer);
  if (!may.ok()) {
    events_.Refused(std::string(may.message()));
    LetGo(std::move(connection));
    return;
  }
  Trainer& trainer = trainers_.emplace_back();
  trainer.connection = std::move(connection);
  trainer.id = ++last_id_;
  trainer.give_up = SteadyNow() + kPatience;
  trainer.user = peer->uid;
  if (peer->pid <= 0) return;  // of a namespace that this process does not see
  trainer.process = Fd(static_cast<int>(syscall(SYS_pidfd_open, peer->pid, 0)));
  trainer.ended = !trainer.process && errno == ESRCH;
}

absl::Status Collector::MayReport(const std::optional<ucred>& peer) const {
  if (!peer.has_value() || (!options_.any_user && peer->uid != geteuid() && peer->uid != 0)) {
    return absl::PermissionDeniedError("a process of another user");
  }
  if (trainers_.size() >= options_.most_rings) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", options_.most_rings, " trainers"));
  }
  if (!options_.any_user) return absl::OkStatus();
  const auto mine = static_cast<size_t>(
      std::count_if(trainers_.begin(), trainers_.end(),
                    [&](const Trainer& other) { return other.user == peer->uid; }));
  if (2 * (mine + 1) > options_.most_rings - (trainers_.size() - mine) + 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("user ", peer->uid, " has ", mine,
                     " trainers already, half of the places that others leave"));
  }
  return absl::OkStatus();
}

bool Collector::Hear(Trainer& trainer) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(trainer.connection.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  std::vector<Fd> came = Descriptors(message);
  // One that has a ring has said all that there is to say.
  const bool taken = !came.empty() && trainer.ring == nullptr && Take(trainer, came.front());
  for (Fd& one : came) LetGo(std::move(one));
  return taken;
}

// Whoever closes a socket that lingers, or a file of a user's own file system, may be held by it;
// and a connection closes what came over it and was not received.
void Collector::LetGo(Fd strange) {
  if (!strange) return;
  shutdown(strange.get(), SHUT_RDWR);
  closer_->Enqueue([owned = std::make_shared<Fd>(std::move(strange))] {
    *owned = Fd();
    return absl::OkStatus();
  });
}

bool Collector::Take(Trainer& trainer, Fd& memory) {
  absl::StatusOr<RingReader> ring = RingReader::Open(memory);
  if (!ring.ok()) {
    events_.Refused(std::string(ring.status().message()));
    return false;
  }
  trainer.ring = std::make_unique<RingReader>(*std::move(ring));
  events_.Opened(trainer.id);
  return true;
}

absl::Status Collector::Read(Trainer& trainer) {
  RETURN_IF_ERROR(trainer.ring->Read(records_));
  events_.Ran(trainer.id, *trainer.ring, records_);
  return absl::OkStatus();
}

void Collector::End(Trainer& trainer, const std::string& why) {
  if (trainer.ring != nullptr) events_.Closed(trainer.id, why);
  LetGo(std::move(trainer.connection));
  trainer = Trainer();
}

}  // namespace bucketd::agent
