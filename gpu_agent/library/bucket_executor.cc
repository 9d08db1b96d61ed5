#include "gpu_agent/library/bucket_executor.h"

#include <chrono>
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
#include "gpu_agent/library/reporting.h"
#include "passes/base/digest.h"
#include "passes/base/status_macros.h"

using bucketd::agent::BucketTimes;
using bucketd::agent::Executor;
using bucketd::agent::TicketPtr;

struct bucket_telemetry {
  bucketd::agent::Telemetry telemetry;
};

namespace {

// One run of a bucket, until it was waited for.
struct Run {
  int32_t bucket = 0;
  TicketPtr ticket;
  absl::Duration exposed;
};

}  // namespace

struct bucket_executor {
  bucketd::agent::HostDevice device;
  bucketd::agent::HostCopier copier;
  std::unique_ptr<Executor> executor;
  std::mutex mutex;
  int64_t last_ticket = 0;
  std::map<int64_t, Run> runs;  // by ticket
  std::map<int32_t, BucketTimes> times;
  std::unique_ptr<bucketd::agent::Reporting> reporting;  // null: to nobody
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

uint64_t FirstEight(const uint8_t* digest) {
  uint64_t first = 0;
  std::memcpy(&first, digest, sizeof(first));
  return first;
}

// All ranks of a group have the same folder, and no other job has it.
RingLink LinkOf(const bucket_executor_options& options, const bucket_channel& channel) {
  RingLink link;
  link.group = FirstEight(
      Sha256(absl::StrCat(options.folder, "/", channel.group, "/", channel.lane)).data());
  link.size = static_cast<uint32_t>(channel.size);
  link.ranks_per_node = link.size;
  return link;
}

std::unique_ptr<Reporting> MakeReporting(const Program& program,
                                         const bucket_executor_options& options,
                                         Telemetry& telemetry,
                                         const bucket_prediction& prediction) {
  RingPlan plan;
  plan.plan = FirstEight(options.plan);
  plan.part = static_cast<uint8_t>(prediction.part);
  plan.predicted_ps = prediction.total_ps;
  plan.predicted_exposed_ps = prediction.exposed_ps;
  plan.predicted_peak_bytes = prediction.peak_bytes;
  std::vector<RingLink> links;
  for (int32_t b = 0; b < options.bucket_count; ++b) {
    links.push_back(LinkOf(options, options.channels[options.buckets[b].channel]));
  }
  return std::make_unique<Reporting>(
      telemetry, program, plan, links,
      std::vector<int64_t>(prediction.wire_ps, prediction.wire_ps + options.bucket_count));
}

absl::StatusOr<std::unique_ptr<bucket_telemetry>> OpenTelemetry(const char* agent,
                                                                const char* job) {
  auto opened = std::make_unique<bucket_telemetry>();
  ASSIGN_OR_RETURN(opened->telemetry.ring, RingWriter::Create(job, agent));
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
  executor->runs[++executor->last_ticket] = {bucket, *std::move(started), absl::ZeroDuration()};
  return executor->last_ticket;
}

int32_t bucket_executor_wait(bucket_executor* executor, int64_t ticket, double seconds,
                             char** error) {
  TicketPtr waited_for;
  {
    const std::lock_guard<std::mutex> lock(executor->mutex);
    const auto found = executor->runs.find(ticket);
    if (found == executor->runs.end()) {
      *error = bucketd::agent::Text(absl::NotFoundError(absl::StrCat("no ticket ", ticket)));
      return 0;
    }
    waited_for = found->second.ticket;
  }
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status waited = executor->executor->Wait(waited_for, bucketd::agent::Phase::kDone,
                                                       absl::Now() + absl::Seconds(seconds));
  const auto exposed = std::chrono::steady_clock::now() - begin;
  const auto times = executor->executor->Times(waited_for);
  const std::lock_guard<std::mutex> lock(executor->mutex);
  Run& run = executor->runs[ticket];
  run.exposed += absl::FromChrono(exposed);
  if (times.ok()) executor->times[run.bucket] = *times;
  if (waited.ok() && times.ok() && executor->reporting != nullptr) {
    executor->reporting->Ran(run.bucket, *times, absl::ToInt64Nanoseconds(run.exposed));
  }
  if (!absl::IsDeadlineExceeded(waited)) executor->runs.erase(ticket);
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

bucket_telemetry* bucket_telemetry_open(const char* agent, const char* job, char** error) {
  auto opened = bucketd::agent::OpenTelemetry(agent, job);
  if (opened.ok()) return opened->release();
  *error = bucketd::agent::Text(opened.status());
  return nullptr;
}

void bucket_telemetry_close(bucket_telemetry* telemetry) { delete telemetry; }

void bucket_telemetry_peak(bucket_telemetry* telemetry, int64_t bytes) {
  telemetry->telemetry.peak_bytes = bytes;
}

uint64_t bucket_telemetry_dropped(const bucket_telemetry* telemetry) {
  return telemetry->telemetry.ring->dropped();
}

void bucket_executor_report(bucket_executor* executor, const bucket_executor_options* options,
                            bucket_telemetry* telemetry, const bucket_prediction* prediction) {
  executor->reporting = bucketd::agent::MakeReporting(executor->executor->program(), *options,
                                                      telemetry->telemetry, *prediction);
}

void bucket_free(char* text) { free(text); }

}  // extern "C"
