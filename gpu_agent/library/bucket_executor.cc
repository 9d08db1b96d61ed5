#include "gpu_agent/library/bucket_executor.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "gpu_agent/comm/ring_connect.h"
#include "gpu_agent/device/host_device.h"
#include "gpu_agent/exec/executor.h"
#include "gpu_agent/exec/host_copier.h"
#include "passes/base/status_macros.h"

using bucketd::agent::BucketTimes;
using bucketd::agent::Executor;
using bucketd::agent::TicketPtr;

struct bucket_executor {
  bucketd::agent::HostDevice device;
  bucketd::agent::HostCopier copier;
  std::unique_ptr<Executor> executor;
  std::mutex mutex;
  int64_t last_ticket = 0;
  std::map<int64_t, std::pair<int32_t, TicketPtr>> tickets;  // bucket and ticket
  std::map<int32_t, BucketTimes> times;
};

namespace bucketd::agent {
namespace {

PlanSpec SpecOf(const bucket_executor_options& options) {
  PlanSpec spec;
  std::memcpy(spec.graph.data(), options.plan, spec.graph.size());
  for (int32_t b = 0; b < options.bucket_count; ++b) {
    const bucket_spec& from = options.buckets[b];
    const bucket_channel& channel = options.channels[from.channel];
    BucketSpec& bucket = spec.buckets.emplace_back();
    bucket.name = from.name;
    bucket.mesh_dim = channel.mesh_dim;
    bucket.lane = channel.lane;
    bucket.group_size = channel.size;
    bucket.kind = static_cast<CollectiveKind>(from.kind);
    bucket.op = static_cast<ReduceOp>(from.op);
    bucket.dtype = static_cast<DType>(from.dtype);
    bucket.mode = static_cast<BucketMode>(from.mode);
    bucket.counts.assign(from.counts, from.counts + from.members);
  }
  for (int32_t t = 0; t < options.turn_count; ++t) {
    const int32_t turn = options.turns[t];
    spec.order.push_back({.start = turn >= 0, .bucket = turn >= 0 ? turn : -1 - turn});
  }
  return spec;
}

absl::StatusOr<std::unique_ptr<Communicator>> Connect(const bucket_executor_options& options,
                                                      const bucket_channel& channel,
                                                      absl::Time deadline) {
  const std::string folder = absl::StrCat(options.folder, "/", channel.group, ".", channel.lane);
  ASSIGN_OR_RETURN(const auto rendezvous, FolderRendezvous::Open(folder));
  RingConnectOptions connect;
  connect.self = {.group = absl::StrCat(channel.group, "/", channel.lane),
                  .epoch = static_cast<int64_t>(options.epoch),
                  .rank = channel.rank,
                  .size = channel.size};
  connect.token = options.token;
  connect.unix_folder = folder;
  connect.deadline = deadline;
  ASSIGN_OR_RETURN(RingPeers peers, ConnectRing(connect, *rendezvous));
  RingOptions ring;
  ring.timeout = absl::Seconds(options.timeout_seconds);
  ring.order = options.gloo_order != 0 ? RingOrder::kGloo : RingOrder::kNccl;
  return RingCommunicator::Create(std::move(peers), ring);
}

absl::Status Check(const bucket_executor_options& options) {
  for (int32_t b = 0; b < options.bucket_count; ++b) {
    const bucket_spec& bucket = options.buckets[b];
    if (bucket.channel >= 0 && bucket.channel < options.channel_count && bucket.members > 0) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("bucket ", b, ": channel ", bucket.channel,
                                                   " of ", options.channel_count, ", ",
                                                   bucket.members, " members"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<bucket_executor>> Open(const bucket_executor_options& options) {
  RETURN_IF_ERROR(Check(options));
  ASSIGN_OR_RETURN(Program program, LayOut(SpecOf(options)));
  const absl::Duration timeout = absl::Seconds(options.timeout_seconds);
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<Channel> channels;
  for (int32_t c = 0; c < options.channel_count; ++c) {
    const bucket_channel& from = options.channels[c];
    ASSIGN_OR_RETURN(auto communicator, Connect(options, from, deadline));
    channels.push_back({from.mesh_dim, from.lane, std::move(communicator)});
  }
  auto opened = std::make_unique<bucket_executor>();
  ASSIGN_OR_RETURN(
      opened->executor,
      Executor::Create(opened->device, opened->copier, std::move(program), std::move(channels),
                       {.timeout = timeout, .epoch = options.epoch}));
  return opened;
}

char* Text(const absl::Status& status) { return strdup(status.ToString().c_str()); }

std::vector<Tensor> Tensors(const bucket_tensor* from, size_t count) {
  std::vector<Tensor> tensors(count);
  for (size_t i = 0; i < count; ++i) {
    tensors[i] = {static_cast<std::byte*>(from[i].data), from[i].elements,
                  static_cast<DType>(from[i].dtype)};
  }
  return tensors;
}

}  // namespace
}  // namespace bucketd::agent

extern "C" {

int32_t bucket_executor_abi(void) { return BUCKET_EXECUTOR_ABI; }

bucket_executor* bucket_executor_open(const bucket_executor_options* options, char** error) {
  auto opened = bucketd::agent::Open(*options);
  if (opened.ok()) return opened->release();
  *error = bucketd::agent::Text(opened.status());
  return nullptr;
}

void bucket_executor_close(bucket_executor* executor) { delete executor; }

int64_t bucket_executor_start(bucket_executor* executor, int32_t bucket, const bucket_tensor* in,
                              const bucket_tensor* out, char** error) {
  const auto& plan = executor->executor->program().plan;
  if (bucket < 0 || static_cast<size_t>(bucket) >= plan.buckets.size()) {
    *error = bucketd::agent::Text(
        absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " of ", plan.buckets.size())));
    return 0;
  }
  const size_t members = plan.buckets[static_cast<size_t>(bucket)].counts.size();
  const auto from = bucketd::agent::Tensors(in, members),
             to = bucketd::agent::Tensors(out, members);
  bucketd::agent::Payload payload;
  payload.in = from;
  payload.out = to;
  auto started = executor->executor->Start(bucket, payload);
  if (!started.ok()) {
    *error = bucketd::agent::Text(started.status());
    return 0;
  }
  const std::lock_guard<std::mutex> lock(executor->mutex);
  executor->tickets[++executor->last_ticket] = {bucket, *std::move(started)};
  return executor->last_ticket;
}

int32_t bucket_executor_wait(bucket_executor* executor, int64_t ticket, double seconds,
                             char** error) {
  std::pair<int32_t, TicketPtr> run;
  {
    const std::lock_guard<std::mutex> lock(executor->mutex);
    const auto found = executor->tickets.find(ticket);
    if (found == executor->tickets.end()) {
      *error = bucketd::agent::Text(absl::NotFoundError(absl::StrCat("no ticket ", ticket)));
      return 0;
    }
    run = found->second;
  }
  const absl::Status waited = executor->executor->Wait(run.second, bucketd::agent::Phase::kDone,
                                                       absl::Now() + absl::Seconds(seconds));
  const auto times = executor->executor->Times(run.second);
  const std::lock_guard<std::mutex> lock(executor->mutex);
  if (!absl::IsDeadlineExceeded(waited)) executor->tickets.erase(ticket);
  if (times.ok()) executor->times[run.first] = *times;
  if (waited.ok()) return 1;
  *error = bucketd::agent::Text(waited);
  return 0;
}

int32_t bucket_executor_times(bucket_executor* executor, int32_t bucket, int64_t times_ps[3]) {
  const std::lock_guard<std::mutex> lock(executor->mutex);
  const auto found = executor->times.find(bucket);
  if (found == executor->times.end()) return 0;
  times_ps[0] = found->second.pack.duration_ps();
  times_ps[1] = found->second.wire.duration_ps();
  times_ps[2] = found->second.unpack.duration_ps();
  return 1;
}

void bucket_executor_abort(bucket_executor* executor, const char* why) {
  executor->executor->Abort(why);
}

void bucket_free(char* text) { free(text); }

}  // extern "C"
