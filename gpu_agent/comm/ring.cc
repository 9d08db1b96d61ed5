#include "gpu_agent/comm/ring.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "gpu_agent/comm/ring_transfer.h"
#include "gpu_agent/device/host_device.h"
#include "gpu_agent/device/steady.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
class RingCommunicator::Core {
 public:
  Core(RingPeers peers, const RingOptions& options, Fd wake)
      : options_(options), transport_(std::move(peers.transport)) {
    links_.rank = peers.rank;
    links_.size = peers.size;
    links_.order = options.order;
    const bool right = options.order == RingOrder::kNccl;
    links_.to = std::move(right ? peers.right : peers.left);
    links_.from = std::move(right ? peers.left : peers.right);
    links_.wake = std::move(wake);
  }

  int rank() const { return links_.rank; }
  int size() const { return links_.size; }
  absl::Status health() const { return links_.health.status(); }
  std::string ToString() const {
    if (size() == 1) return "ring of 1 rank";
    return absl::StrCat("ring of ", size(), " ranks over ", transport_, ", rank ", rank());
  }

  absl::Status Run(absl::Span<const Collective> group) {
    std::lock_guard lock(running_);
    RETURN_IF_ERROR(health());
    const absl::Status status = size() == 1 ? Copy(group) : Transfer(group);
    if (!status.ok()) Fail(status);
    return health();
  }

  absl::Status Watch(SteadyTime deadline) {
    pollfd waits[] = {{.fd = links_.wake.get(), .events = POLLIN, .revents = 0},
                      {.fd = links_.from.get(), .events = POLLRDHUP, .revents = 0},
                      {.fd = links_.to.get(), .events = POLLRDHUP, .revents = 0}};
    for (;;) {
      RETURN_IF_ERROR(health());
      const int ready = poll(waits, std::size(waits), MillisecondsUntil(deadline));
      if (ready > 0 && waits[0].revents != 0) return health();
      if (ready > 0 && waits[1].revents != 0) return NeighbourGone(links_, RingSide::kIn, 0);
      if (ready > 0 && waits[2].revents != 0) return NeighbourGone(links_, RingSide::kOut, 0);
      if (ready == 0 && SteadyNow() >= deadline) return health();
    }
  }

  // Peers see a closed connection now, not when the last launch has let go of this.
  void Fail(const absl::Status& error) {
    if (!links_.health.Fail(error)) return;
    const uint64_t one = 1;
    // Cannot fail: the counter is far from its end.
    [[maybe_unused]] const ssize_t written = write(links_.wake.get(), &one, sizeof(one));
    for (const Fd* fd : {&links_.from, &links_.to}) {
      if (*fd) shutdown(fd->get(), SHUT_RDWR);
    }
  }

 private:
  absl::Status Transfer(absl::Span<const Collective> group) {
    return RingTransfer(links_, group, options_.max_segment, SteadyIn(options_.timeout)).Run();
  }

  static absl::Status Copy(absl::Span<const Collective> group) {
    for (const Collective& member : group) {
      if (member.count == 0 || member.in == member.out) continue;
      std::memcpy(member.out, member.in, static_cast<size_t>(InputBytes(member, 1)));
    }
    return absl::OkStatus();
  }

  const RingOptions options_;
  const std::string transport_;
  std::mutex running_;
  RingLinks links_;
};

absl::StatusOr<std::unique_ptr<RingCommunicator>> RingCommunicator::Create(
    RingPeers peers, const RingOptions& options) {
  if (peers.size < 1 || peers.rank < 0 || peers.rank >= peers.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", peers.rank, " in a ring of ", peers.size));
  }
  const bool connected = peers.left && peers.right;
  if (peers.size > 1 && !connected) {
    return absl::InvalidArgumentError("a ring of several ranks wants two connections");
  }
  if (options.max_segment < 16 || options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_segment ", options.max_segment, ", timeout ", absl::FormatDuration(options.timeout),
        ": expected at least 16 bytes and some time"));
  }
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return absl::ResourceExhaustedError("no descriptor for the ring's eventfd");
  return std::unique_ptr<RingCommunicator>(
      new RingCommunicator(std::make_shared<Core>(std::move(peers), options, std::move(wake))));
}

RingCommunicator::RingCommunicator(std::shared_ptr<Core> core) : core_(std::move(core)) {}
RingCommunicator::~RingCommunicator() { Abort("the communicator was destroyed"); }

absl::Status RingCommunicator::Launch(Stream& stream, absl::Span<const Collective> group) {
  RETURN_IF_ERROR(health());
  RETURN_IF_ERROR(ValidateGroup(group, rank(), size()));
  HostStream* host = AsHostStream(stream);
  if (host == nullptr) return absl::InvalidArgumentError("the ring wants a stream of host memory");
  host->Enqueue([core = core_, members = std::vector<Collective>(group.begin(), group.end())] {
    return core->Run(members);
  });
  return absl::OkStatus();
}

int RingCommunicator::rank() const { return core_->rank(); }
int RingCommunicator::size() const { return core_->size(); }
std::string RingCommunicator::ToString() const { return core_->ToString(); }
absl::Status RingCommunicator::health() const { return core_->health(); }
void RingCommunicator::Abort(const std::string& why) { core_->Fail(absl::AbortedError(why)); }
absl::Status RingCommunicator::WatchNeighbours(absl::Time deadline) {
  return core_->Watch(SteadyAt(deadline));
}

}  // namespace bucketd::agent
