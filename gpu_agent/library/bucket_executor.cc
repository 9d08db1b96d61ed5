#include "gpu_agent/library/bucket_executor.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "gpu_agent/library/handle.h"
#include "passes/base/digest.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

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
  link.ranks_per_node = static_cast<uint32_t>(channel.on_this_host);
  return link;
}

std::unique_ptr<Reporting> MakeReporting(const Program& program,
                                         const bucket_executor_options& options, RingWriter& ring,
                                         const bucket_prediction& prediction) {
  RingPlan plan;
  plan.plan = FirstEight(options.plan);
  plan.part = static_cast<uint8_t>(prediction.part);
  plan.predicted_exposed_ps = prediction.exposed_ps;
  plan.predicted_peak_bytes = prediction.peak_bytes;
  std::vector<RingLink> links;
  for (int32_t b = 0; b < options.bucket_count; ++b) {
    links.push_back(LinkOf(options, options.channels[options.buckets[b].channel]));
  }
  return std::make_unique<Reporting>(
      ring, program, plan, links,
      std::vector<int64_t>(prediction.wire_ps, prediction.wire_ps + options.bucket_count));
}

absl::StatusOr<std::unique_ptr<bucket_telemetry>> OpenTelemetry(const char* agent,
                                                                const char* job) {
  auto opened = std::make_unique<bucket_telemetry>();
  ASSIGN_OR_RETURN(opened->ring, RingWriter::Create(job, agent));
  return opened;
}

// A graph reads the device's tables of tiles at each of its replays, and what hangs may read them
// yet. Known, so that no checker of leaks finds it.
void LeaveToProcess(bucket_executor* executor) {
  static std::mutex mutex;
  static auto* left = new std::vector<bucket_executor*>;
  const std::lock_guard lock(mutex);
  left->push_back(executor);
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

GpuBackend Gpus() { return LoadGpuBackend(); }

// The run of a ticket; it stays among the others unless `take`.
absl::StatusOr<Run> Find(bucket_executor& executor, int64_t ticket, bool take) {
  const std::lock_guard<std::mutex> lock(executor.mutex);
  const auto found = executor.runs.find(ticket);
  if (found == executor.runs.end()) {
    return absl::NotFoundError(absl::StrCat("no ticket ", ticket));
  }
  Run run = found->second;
  if (take) executor.runs.erase(found);
  return run;
}

absl::StatusOr<int64_t> Start(bucket_executor& executor, int32_t bucket, const bucket_tensor* in,
                              const bucket_tensor* out, void* stream) {
  RETURN_IF_ERROR(executor.maker.Check());
  const auto& plan = executor.executor->program().plan;
  if (bucket < 0 || static_cast<size_t>(bucket) >= plan.buckets.size()) {
    return absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " of ", plan.buckets.size()));
  }
  const size_t members = plan.buckets[static_cast<size_t>(bucket)].counts.size();
  const auto from = Tensors(in, members), to = Tensors(out, members);
  Payload payload;
  payload.in = from;
  payload.out = to;
  if (executor.module != nullptr) {
    ASSIGN_OR_RETURN(const auto adopted, executor.module->adopt(*executor.device, stream));
    ASSIGN_OR_RETURN(payload.capture, adopted->Capture());
    payload.after = adopted->Record();
  }
  ASSIGN_OR_RETURN(TicketPtr ticket, executor.executor->Start(bucket, payload));
  const std::lock_guard<std::mutex> lock(executor.mutex);
  executor.runs[++executor.last_ticket] = {bucket, std::move(ticket), absl::ZeroDuration(),
                                           payload.capture != 0};
  return executor.last_ticket;
}

absl::Status Join(bucket_executor& executor, int64_t ticket, void* stream) {
  RETURN_IF_ERROR(executor.maker.Check());
  if (executor.module == nullptr) {
    return absl::FailedPreconditionError("host memory has no streams: wait");
  }
  ASSIGN_OR_RETURN(const Run run, Find(executor, ticket, false));
  ASSIGN_OR_RETURN(const auto adopted, executor.module->adopt(*executor.device, stream));
  Joined joined{run.bucket, run.ticket, nullptr, nullptr};
  const bool told = executor.reporting != nullptr && !run.captured;
  if (told) joined.reached = adopted->Record();
  RETURN_IF_ERROR(executor.executor->Join(run.ticket, *adopted));
  if (told) joined.left = adopted->Record();
  // An adopted stream knows the errors of what it was told to wait for.
  RETURN_IF_ERROR(executor.executor->health());
  Find(executor, ticket, true).IgnoreError();
  if (!run.captured) executor.NoteWhenDone(std::move(joined));
  return absl::OkStatus();
}

absl::Status Wait(bucket_executor& executor, int64_t ticket, absl::Duration patience) {
  RETURN_IF_ERROR(executor.maker.Check());
  ASSIGN_OR_RETURN(const Run waited_for, Find(executor, ticket, false));
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status waited =
      executor.executor->Wait(waited_for.ticket, Phase::kDone, absl::Now() + patience);
  const auto exposed = std::chrono::steady_clock::now() - begin;
  const auto times = executor.executor->Times(waited_for.ticket);
  const std::lock_guard<std::mutex> lock(executor.mutex);
  Run& run = executor.runs[ticket];
  run.exposed += absl::FromChrono(exposed);
  if (waited.ok() && times.ok() && executor.reporting != nullptr) {
    executor.reporting->Ran(run.bucket, *times, absl::ToInt64Nanoseconds(run.exposed));
  }
  if (!absl::IsDeadlineExceeded(waited) && !run.captured) executor.runs.erase(ticket);
  return waited;
}

// 1, or 0 and the text.
int32_t Said(const absl::Status& status, char** error) {
  if (status.ok()) return 1;
  *error = Text(status);
  return 0;
}

}  // namespace
}  // namespace bucketd::agent

using namespace bucketd::agent;  // below are names of C alone

extern "C" {

int32_t bucket_executor_abi(void) { return BUCKET_EXECUTOR_ABI; }

int32_t bucket_executor_usable(int32_t device, char** error) {
  return Said(Usable(device, Gpus), error);
}

char* bucket_executor_refuses(int32_t device, const bucket_spec* bucket, int32_t ranks) {
  const absl::Status takes = Takes(device, *bucket, ranks, Gpus);
  return takes.ok() ? nullptr : Text(takes);
}

int64_t bucket_executor_plan_bytes(const bucket_executor_options* options, char** error) {
  const auto program = ProgramOf(*options);
  if (Said(program.status(), error) == 0) return 0;
  return std::max<int64_t>(program->memory_bytes, kBucketAlignment);
}

bucket_executor* bucket_executor_open(const bucket_executor_options* options, char** error) {
  auto opened = OpenExecutor(*options, Gpus);
  return Said(opened.status(), error) != 0 ? opened->release() : nullptr;
}

int32_t bucket_executor_close(bucket_executor* executor, char** error) {
  *error = nullptr;
  if (!executor->maker.here()) return 1;
  executor->StopNoting();
  absl::Status ended = executor->executor->health();
  const absl::Status closed = executor->executor->Close();
  if (ended.ok()) ended = executor->executor->undefined();
  if (!ended.ok()) *error = Text(ended);
  if (!closed.ok()) {
    std::fprintf(stderr, "bucket executor: %s: its tensors and its arena have to stay\n",
                 std::string(closed.message()).c_str());
    LeaveToProcess(executor);
    return 0;
  }
  delete executor;
  return 1;
}

int64_t bucket_executor_start(bucket_executor* executor, int32_t bucket, const bucket_tensor* in,
                              const bucket_tensor* out, void* stream, char** error) {
  const auto ticket = Start(*executor, bucket, in, out, stream);
  return Said(ticket.status(), error) != 0 ? *ticket : 0;
}

int32_t bucket_executor_join(bucket_executor* executor, int64_t ticket, void* stream,
                             char** error) {
  return Said(Join(*executor, ticket, stream), error);
}

int32_t bucket_executor_wait(bucket_executor* executor, int64_t ticket, double seconds,
                             char** error) {
  return Said(Wait(*executor, ticket, absl::Seconds(seconds)), error);
}

int32_t bucket_executor_health(bucket_executor* executor, char** error) {
  absl::Status found = executor->maker.Check();
  if (found.ok()) found = executor->executor->Check();
  return Said(found, error);
}

void bucket_executor_abort(bucket_executor* executor, const char* why) {
  if (executor->maker.here()) executor->executor->Abort(why);
}

char* bucket_executor_nccl(void) {
  const GpuBackend gpus = Gpus();
  if (gpus.module == nullptr) return nullptr;
  const auto version = gpus.module->nccl_version();
  return version.ok() ? strdup(version->c_str()) : nullptr;
}

bucket_telemetry* bucket_telemetry_open(const char* agent, const char* job, char** error) {
  auto opened = OpenTelemetry(agent, job);
  return Said(opened.status(), error) != 0 ? opened->release() : nullptr;
}

void bucket_telemetry_close(bucket_telemetry* telemetry) {
  if (telemetry->maker.here()) delete telemetry;
}

uint64_t bucket_telemetry_dropped(const bucket_telemetry* telemetry) {
  return telemetry->maker.here() ? telemetry->ring->dropped() : 0;
}

int32_t bucket_executor_report(bucket_executor* executor, const bucket_executor_options* options,
                               bucket_telemetry* telemetry, const bucket_prediction* prediction) {
  if (!executor->maker.here() || !telemetry->maker.here()) return 1;
  executor->reporting =
      MakeReporting(executor->executor->program(), *options, *telemetry->ring, *prediction);
  return executor->reporting->whole() ? 1 : 0;
}

void bucket_executor_peak(bucket_executor* executor, int64_t bytes) {
  if (executor->reporting != nullptr) executor->reporting->Took(bytes);
}

void bucket_free(char* text) { free(text); }

}  // extern "C"
