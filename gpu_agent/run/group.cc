#include "gpu_agent/run/group.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "gpu_agent/comm/ring.h"
#include "gpu_agent/comm/ring_connect.h"
#include "gpu_agent/device/steady.h"
#include "gpu_agent/device/thread.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// Whoever met has only to dial: a rank that does not come by then has died in between.
constexpr absl::Duration kConnectTime = absl::Seconds(10);
constexpr std::chrono::seconds kWatch{20};  // of one long poll
constexpr absl::Duration kWatchPause = absl::Seconds(1);
constexpr std::chrono::seconds kLastWord{2};
// Until a loss is passed on by hanging up as well: the other neighbour shall see who it was.
constexpr absl::Duration kNotice = absl::Milliseconds(300);

// "dp/0" at tenant "t" and at "" are two groups.
std::string RingName(const GroupOptions& options) {
  const std::string name = absl::StrCat(options.tenant, "/", options.name);
  return name.substr(0, std::min<size_t>(name.size(), 128));
}

template <typename Request>
Request About(const GroupOptions& options, uint64_t epoch) {
  Request request;
  request.set_tenant(options.tenant);
  request.set_group(options.name);
  request.set_epoch(epoch);
  return request;
}

void TellEnd(client::AgentClient& client, const GroupOptions& options, uint64_t epoch,
             const std::string& why) {
  auto request = About<v1::EndEpochRequest>(options, epoch);
  request.set_rank(static_cast<uint32_t>(options.rank));
  request.set_why(why.substr(0, 1024));
  const auto told = client.EndEpoch(request);
  if (!told.ok()) {
    spdlog::warn("the planner does not hear of the epoch's end: {}",
                 std::string(told.status().message()));
  }
}

absl::StatusOr<std::unique_ptr<Communicator>> Connect(Backend& backend,
                                                      const RingConnectOptions& options,
                                                      const Listener& listener,
                                                      const v1::RendezvousResponse& met,
                                                      absl::Duration timeout) {
  // What the planner told when all had come: the endpoints of one epoch never change.
  const auto endpoint_of = [&met](int rank) -> absl::StatusOr<std::string> {
    if (rank < met.endpoints_size()) return met.endpoints(rank);
    return absl::NotFoundError(absl::StrCat("the planner knows no endpoint of rank ", rank));
  };
  ASSIGN_OR_RETURN(RingPeers peers, ConnectRing(options, listener, endpoint_of));
  RingOptions ring;
  ring.timeout = timeout;
  return backend.Connect(std::move(peers), ring, options.self.group);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> Group::Meet(client::AgentClient& client, Backend& backend,
                                                   const GroupOptions& options) {
  RingConnectOptions ring;
  ring.self.group = RingName(options);
  ring.self.rank = options.rank;
  ring.self.size = options.size;
  ring.unix_folder = options.unix_folder;
  ring.tcp_interface = options.tcp_interface;
  ASSIGN_OR_RETURN(const Listener listener, ListenForRing(ring));

  v1::RendezvousRequest request;
  request.set_tenant(options.tenant);
  request.set_group(options.name);
  request.set_rank(static_cast<uint32_t>(options.rank));
  request.set_size(static_cast<uint32_t>(options.size));
  request.set_endpoint(listener.endpoint());
  request.set_agrees(options.agrees);
  ASSIGN_OR_RETURN(const v1::RendezvousResponse met,
                   client.Rendezvous(request, absl::ToChronoMilliseconds(options.timeout)));

  ring.self.epoch = static_cast<int64_t>(met.epoch());
  ring.token = met.token();
  ring.deadline = absl::Now() + std::min(options.timeout, kConnectTime);
  absl::StatusOr<std::unique_ptr<Communicator>> communicator =
      Connect(backend, ring, listener, met, options.timeout);
  if (!communicator.ok()) {
    TellEnd(client, options, met.epoch(), std::string(communicator.status().message()));
    return communicator.status();
  }
  std::unique_ptr<Group> group(new Group(client, options, met.epoch(), *std::move(communicator)));
  ASSIGN_OR_RETURN(group->watcher_,
                   StartThread("watcher", [self = group.get()](const auto&) { self->Watch(); }));
  return group;
}

Group::Group(client::AgentClient& client, const GroupOptions& options, uint64_t epoch,
             std::unique_ptr<Communicator> communicator)
    : client_(client), options_(options), epoch_(epoch), communicator_(std::move(communicator)) {}

Group::~Group() { Abort("the group was left"); }

// A planner that is away leaves the epoch as it is: whoever fails says so when it is back.
void Group::Watch() {
  const auto request = About<v1::WatchEpochRequest>(options_, epoch_);
  absl::BitGen random;
  for (;;) {
    const auto answer = client_.WatchEpoch(request, kWatch);
    if (answer.ok() && answer->over()) {
      Abort(answer->why());
      return;
    }
    if (absl::IsNotFound(answer.status())) {
      Abort("the planner has forgotten the group");
      return;
    }
    const absl::Duration pause =
        answer.ok() ? absl::ZeroDuration() : kWatchPause * absl::Uniform(random, 0.5, 1.5);
    if (PauseUntil(absl::Now() + pause)) return;
  }
}

// Whoever ends the group aborts the ring, so that this hears of either. NCCL's ranks have theirs.
absl::Status Group::WaitUntil(absl::Time time) {
  auto& ring = dynamic_cast<RingCommunicator&>(communicator_->host());
  const absl::Status status = ring.WatchNeighbours(time);
  if (absl::IsUnavailable(status)) PauseUntil(absl::Now() + kNotice);
  return fate().ok() ? status : fate();
}

bool Group::PauseUntil(absl::Time time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, SteadyAt(time), [this] { return !fate_.ok(); });
}

absl::Status Group::fate() const {
  const std::lock_guard lock(mutex_);
  return fate_;
}

bool Group::Abort(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!fate_.ok()) return false;
    fate_ = absl::AbortedError(absl::StrCat("epoch ", epoch_, " is over: ", why));
  }
  changed_.notify_all();
  const std::string text = fate().ToString(absl::StatusToStringMode::kWithNoExtraData);
  communicator_->Abort(text);
  communicator_->host().Abort(text);
  return true;
}

void Group::End(const std::string& why) {
  if (Abort(why)) TellEnd(client_, options_, epoch_, why);
}

absl::Status Group::Ended(const std::string& why) {
  End(why);
  const auto answer = client_.WatchEpoch(About<v1::WatchEpochRequest>(options_, epoch_), kLastWord);
  return answer.ok() && answer->over() ? absl::AbortedError(answer->why()) : fate();
}

}  // namespace bucketd::agent
