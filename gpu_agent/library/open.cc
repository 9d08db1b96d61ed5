// From the C interface's options to an executor, of the host or of a GPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "gpu_agent/comm/ring_connect.h"
#include "gpu_agent/device/host_device.h"
#include "gpu_agent/device/steady.h"
#include "gpu_agent/library/handle.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

BucketSpec SpecOf(const bucket_spec& from) {
  BucketSpec bucket;
  bucket.name = from.name;
  bucket.kind = static_cast<CollectiveKind>(from.kind);
  bucket.op = static_cast<ReduceOp>(from.op);
  bucket.dtype = static_cast<DType>(from.dtype);
  bucket.mode = static_cast<BucketMode>(from.mode);
  bucket.copies = static_cast<CopyStream>(from.copies);
  bucket.counts.assign(from.counts, from.counts + from.members);
  return bucket;
}

PlanSpec SpecOf(const bucket_executor_options& options) {
  PlanSpec spec;
  std::memcpy(spec.graph.data(), options.plan, spec.graph.size());
  for (int32_t b = 0; b < options.bucket_count; ++b) {
    const bucket_channel& channel = options.channels[options.buckets[b].channel];
    BucketSpec& bucket = spec.buckets.emplace_back(SpecOf(options.buckets[b]));
    bucket.mesh_dim = channel.mesh_dim;
    bucket.lane = channel.lane;
    bucket.group_size = channel.size;
  }
  for (int32_t t = 0; t < options.turn_count; ++t) {
    const int32_t turn = options.turns[t];
    spec.order.push_back({.start = turn >= 0, .bucket = turn >= 0 ? turn : -1 - turn});
  }
  return spec;
}

absl::Status Check(const bucket_executor_options& options) {
  for (int32_t b = 0; b < options.bucket_count; ++b) {
    const bucket_spec& bucket = options.buckets[b];
    const auto copies = static_cast<CopyStream>(bucket.copies);
    if (copies != CopyStream::kCompute && copies != CopyStream::kComm) {
      return absl::InvalidArgumentError(
          absl::StrCat("bucket ", b, ": copies ", bucket.copies, ", expected compute or comm"));
    }
    if (bucket.channel >= 0 && bucket.channel < options.channel_count && bucket.members > 0) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("bucket ", b, ": channel ", bucket.channel,
                                                   " of ", options.channel_count, ", ",
                                                   bucket.members, " members"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinRing(const bucket_executor_options& options,
                                                       const bucket_channel& channel,
                                                       SteadyTime deadline) {
  const std::string folder = absl::StrCat(options.folder, "/", channel.group, ".", channel.lane);
  ASSIGN_OR_RETURN(const auto rendezvous, FolderRendezvous::Open(folder));
  RingConnectOptions connect;
  connect.self = {.group = absl::StrCat(channel.group, "/", channel.lane),
                  .epoch = static_cast<int64_t>(options.epoch),
                  .rank = channel.rank,
                  .size = channel.size};
  connect.token = options.token;
  connect.unix_folder = folder;
  connect.deadline = WallTime(deadline);
  ASSIGN_OR_RETURN(RingPeers peers, ConnectRing(connect, *rendezvous));
  RingOptions ring;
  ring.timeout = absl::Seconds(options.timeout_seconds);
  ring.order = options.gloo_order != 0 ? RingOrder::kGloo : RingOrder::kNccl;
  return RingCommunicator::Create(std::move(peers), ring);
}

// What ranks of a plan and an epoch have in common, and those of another have not.
int ColorOf(const Program& program, uint64_t epoch) {
  const Digest digest = Sha256(absl::StrCat(ToHex(program.digest), "/", epoch));
  uint32_t color = 0;
  std::memcpy(&color, digest.data(), sizeof(color));
  return static_cast<int>(color >> 1);
}

// With the rank that says it.
absl::Status By(const bucket_channel& channel, const Program& program, uint64_t epoch,
                const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("rank ", channel.rank, " of ", channel.size, " of ",
                                   channel.mesh_dim, ", plan ", ToHex(program.digest).substr(0, 8),
                                   " of epoch ", epoch, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<Communicator>> SplitOff(const bucket_channel& channel, int color,
                                                       absl::Duration timeout,
                                                       bucket_executor& handle) {
  if (channel.parent == nullptr) {
    return absl::InvalidArgumentError("there is no communicator to be split");
  }
  NcclOptions nccl;
  nccl.rank = channel.rank;
  nccl.size = channel.size;
  nccl.name = absl::StrCat(channel.mesh_dim, ".", channel.lane);
  nccl.timeout = timeout;
  nccl.parent = channel.parent;
  nccl.color = color;
  return handle.module->nccl(*handle.device, nccl);
}

absl::Status TakeDevice(int32_t index, const FindGpus& gpus, bucket_executor& handle) {
  if (index < 0) {
    handle.device = std::make_unique<HostDevice>();
    return absl::OkStatus();
  }
  const GpuBackend found = gpus();
  if (found.module == nullptr) return absl::UnavailableError(found.reason);
  if (index >= found.gpus) {
    return absl::InvalidArgumentError(absl::StrCat("GPU ", index, ": there is ", found.reason));
  }
  handle.module = found.module;
  ASSIGN_OR_RETURN(handle.device, found.module->open(index));
  return absl::OkStatus();
}

// As torch.distributed's watchdog does it.
void EndProcess(const absl::Status& why) {
  std::fprintf(stderr, "bucket executor: %s; the process ends\n", why.ToString().c_str());
  std::abort();
}

// Before communicators are split: a rank without one is none that the others' launches wait for.
absl::Status TakeArena(const bucket_executor_options& options, const Program& program,
                       ExecutorOptions& how) {
  if (options.arena == nullptr || options.arena_bytes < program.memory_bytes) {
    const std::string got = options.arena == nullptr
                                ? "there is no arena"
                                : absl::StrCat("the arena has ", options.arena_bytes, " bytes");
    return absl::InvalidArgumentError(absl::StrCat(
        got, "; the plan's buckets want ", program.memory_bytes, " bytes of GPU ", options.device,
        ", as bucket_executor_plan_bytes says, or a plan with a lower memory_limit"));
  }
  how.memory = static_cast<std::byte*>(options.arena);
  how.memory_bytes = options.arena_bytes;
  how.compared = true;  // by the communicators' color
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Program> ProgramOf(const bucket_executor_options& options) {
  RETURN_IF_ERROR(Check(options));
  return LayOut(SpecOf(options));
}

absl::StatusOr<std::unique_ptr<bucket_executor>> OpenExecutor(
    const bucket_executor_options& options, const FindGpus& gpus) {
  ASSIGN_OR_RETURN(Program program, ProgramOf(options));
  ExecutorOptions how;
  how.timeout = absl::Seconds(options.timeout_seconds);
  how.epoch = options.epoch;
  if (options.ends_process != 0) how.ends = EndProcess;
  const SteadyTime deadline = SteadyIn(how.timeout);
  auto opened = std::make_unique<bucket_executor>();
  const bool on_gpu = options.device >= 0;
  absl::Status taken = TakeDevice(options.device, gpus, *opened);
  if (taken.ok() && on_gpu) taken = TakeArena(options, program, how);
  if (on_gpu && options.channel_count > 0) {
    taken = By(options.channels[0], program, options.epoch, taken);
  }
  RETURN_IF_ERROR(taken);
  const int color = ColorOf(program, options.epoch);
  std::vector<Channel> channels;
  for (int32_t c = 0; c < options.channel_count; ++c) {
    const bucket_channel& from = options.channels[c];
    auto communicator =
        on_gpu ? SplitOff(from, color, how.timeout, *opened) : JoinRing(options, from, deadline);
    if (!communicator.ok()) {
      return on_gpu ? By(from, program, options.epoch, communicator.status())
                    : communicator.status();
    }
    channels.push_back({from.mesh_dim, from.lane, *std::move(communicator)});
  }
  ASSIGN_OR_RETURN(opened->executor,
                   Executor::Create(*opened->device, std::move(program), std::move(channels), how));
  return opened;
}

absl::Status Takes(int32_t device, const bucket_spec& bucket, int32_t ranks, const FindGpus& gpus) {
  BucketSpec spec = SpecOf(bucket);
  spec.group_size = ranks;
  PlanSpec plan;
  plan.buckets = {spec};
  plan.order = {{.start = true, .bucket = 0}, {.start = false, .bucket = 0}};
  RETURN_IF_ERROR(Validate(plan));
  Collective collective{spec.kind, nullptr, nullptr, 0, spec.dtype, spec.op};
  RETURN_IF_ERROR(Validate(collective, ranks));
  if (device < 0) return absl::OkStatus();
  const GpuBackend found = gpus();
  if (found.module == nullptr) return absl::UnavailableError(found.reason);
  return found.module->takes(collective);
}

// What is said when an executor opens, the ranks that have no trouble hear of too late.
absl::Status Usable(int32_t device, const FindGpus& gpus) {
  bucket_executor tried;
  const absl::Status there = TakeDevice(device, gpus, tried);
  return there.ok() ? there : absl::UnavailableError(there.message());
}

}  // namespace bucketd::agent
