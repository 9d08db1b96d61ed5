// How an executor begins: its streams, its memory, and what its ranks have in common.
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

#include "gpu_agent/device/steady.h"
#include "gpu_agent/device/thread.h"
#include "gpu_agent/exec/agreement.h"
#include "gpu_agent/exec/executor.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

std::string NameOf(const std::string& mesh_dim, int32_t lane) {
  return lane == 0 ? absl::StrCat("\"", mesh_dim, "\"")
                   : absl::StrCat("\"", mesh_dim, "\" lane ", lane);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(Device& device, Program program,
                                                           std::vector<Channel> channels,
                                                           const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(device, std::move(program), options));
  RETURN_IF_ERROR(executor->Open(std::move(channels)));
  return executor;
}

absl::Status Executor::Open(std::vector<Channel> channels) {
  for (Channel& channel : channels) {
    auto lane = std::make_unique<Lane>();
    lane->channel = std::move(channel);
    ASSIGN_OR_RETURN(lane->stream, device_.NewStream(absl::StrCat("wire ", lanes_.size())));
    lanes_.push_back(std::move(lane));
  }
  for (size_t k = 0; k < slots_.size(); ++k) {
    const BucketSpec& spec = program_.plan.buckets[k];
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      const Channel& c = lane->channel;
      if (c.mesh_dim == spec.mesh_dim && c.lane == spec.lane) slots_[k].lane = lane.get();
    }
    const auto bucket = static_cast<int32_t>(k);
    if (slots_[k].lane == nullptr) {
      return Wrong(program_.plan, bucket, ": there is no communicator for ",
                   NameOf(spec.mesh_dim, spec.lane));
    }
    const Communicator& communicator = *slots_[k].lane->channel.communicator;
    if (communicator.size() != spec.group_size) {
      return Wrong(program_.plan, bucket, ": is planned over ", spec.group_size, " ranks, ",
                   NameOf(spec.mesh_dim, spec.lane), " is a ", communicator.ToString());
    }
  }
  ASSIGN_OR_RETURN(pack_, device_.NewStream("pack"));
  ASSIGN_OR_RETURN(unpack_, device_.NewStream("unpack"));
  RETURN_IF_ERROR(TakeArena());
  const SteadyTime deadline = SteadyIn(options_.timeout);
  bool registered = memory_ != nullptr;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (options_.compared) continue;
    RETURN_IF_ERROR(Agree(*lane->channel.communicator,
                          NameOf(lane->channel.mesh_dim, lane->channel.lane), program_.digest,
                          options_.epoch, WallTime(deadline)));
    // What one lane refuses costs the others no time.
    if (registered) {
      ASSIGN_OR_RETURN(registered, Register(*lane, deadline));
    }
  }
  ASSIGN_OR_RETURN(watchdog_, StartThread("watchdog", [this](const auto&) { Watch(); }));
  return absl::OkStatus();
}

absl::Status Executor::TakeArena() {
  const int64_t bytes = program_.memory_bytes;
  base_ = options_.memory;
  if (base_ == nullptr && bytes > 0) {
    ASSIGN_OR_RETURN(memory_, device_.Allocate(bytes));
    base_ = memory_->data();
  }
  if (reinterpret_cast<uintptr_t>(base_) % kBucketAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the buckets' memory is not aligned to ", kBucketAlignment));
  }
  if (options_.memory != nullptr && options_.memory_bytes < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan's buckets want ", bytes, " bytes, got ", options_.memory_bytes));
  }
  return absl::OkStatus();
}

// All ranks of a collective have registered memory, or none has and this is false. Agreed plans
// have it of one size.
absl::StatusOr<bool> Executor::Register(Lane& lane, SteadyTime deadline) {
  Communicator& communicator = *lane.channel.communicator;
  const absl::Status registered = communicator.Register(memory_->data(), memory_->bytes());
  ASSIGN_OR_RETURN(const bool everywhere,
                   OnAllRanks(communicator, registered.ok(), WallTime(deadline)));
  if (everywhere) return true;
  std::fprintf(
      stderr, "bucket executor: %s runs without registered memory: %s\n",
      communicator.ToString().c_str(),
      registered.ok() ? "another rank's was refused" : std::string(registered.message()).c_str());
  // NCCL answers late: then the communicator of the rank that was refused is gone, and those of
  // peers that waited for it.
  ASSIGN_OR_RETURN(const bool live,
                   OnAllRanks(communicator, communicator.health().ok(), WallTime(deadline)));
  if (!live) {
    RETURN_IF_ERROR(communicator.Renew(WallTime(deadline)));
  } else if (registered.ok()) {
    RETURN_IF_ERROR(communicator.Deregister(memory_->data()));
  }
  return false;
}

}  // namespace bucketd::agent
