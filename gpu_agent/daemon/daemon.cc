#include "gpu_agent/daemon/daemon.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "gpu_agent/device/steady.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

constexpr std::chrono::seconds kCostDeadline{5};
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(15);
constexpr absl::Duration kLook = absl::Seconds(1);  // for who computes here

// What peers and planner say stays one line.
std::string OneLine(absl::string_view text) { return absl::Utf8SafeCEscape(text); }

// Ranks that measure differently would wait for each other.
DaemonOptions WithAgreement(DaemonOptions options, const std::string& backend) {
  options.group.agrees =
      absl::StrCat("probe 2, up to ", options.sweep_bytes, " bytes, ",
                   options.group.unix_folder.empty() ? "tcp, " : "unix, ", backend);
  return options;
}

ReporterOptions ForReporter(const DaemonOptions& options) {
  const int per_node = options.group.unix_folder.empty() ? options.per_node : 0;
  return {options.profile,    options.link_class, options.host,
          options.group.name, options.group.size, per_node};
}

// What trying again does not mend.
bool IsForGood(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace

Daemon::Daemon(DaemonOptions options, Backend& backend, AgentMetrics& metrics,
               ReportMetrics& reports)
    : backend_(backend),
      options_(WithAgreement(std::move(options), backend.name())),
      metrics_(metrics),
      agents_(options_.planner, options_.tls),
      costs_(options_.planner, options_.tls, kCostDeadline),
      reporter_(costs_, reports, ForReporter(options_)) {
  state_.doing = "starts";
  metrics_.probe_interval.Set(absl::ToDoubleSeconds(options_.probe_every));
}

absl::Status Daemon::Run() {
  bool met = false;
  for (;;) {
    const absl::Status status = RunEpoch();
    SetReady(false);
    const uint64_t epoch = state().epoch;
    met = met || epoch != 0;
    std::shared_ptr<Group> left;  // goes without the lock: its long poll may take a while
    {
      const std::lock_guard lock(mutex_);
      left.swap(group_);
      if (stopped_) return absl::OkStatus();
    }
    left = nullptr;
    if (!met && IsForGood(status)) return status;
    if (gave_way_) continue;  // into the pause that ends when nobody computes
    RETURN_IF_ERROR(backend_.Check());
    Trouble(met ? absl::StrCat("after epoch ", epoch) : "no group yet", status);
    // Whoever has waited for ranks in vain waits for them again.
    Pause(absl::IsDeadlineExceeded(status) ? 0 : failures_++);
  }
}

absl::Status Daemon::WaitUntilIdle() {
  std::string last;
  for (;;) {
    const std::string busy = options_.busy == nullptr ? "" : options_.busy();
    metrics_.paused.Set(busy.empty() ? 0 : 1);
    if (busy.empty()) return backend_.Return();
    const absl::Status left = backend_.Leave();
    if (!left.ok()) spdlog::warn("GPU memory is not given back: {}", OneLine(left.message()));
    std::unique_lock lock(mutex_);
    state_.doing = absl::StrCat("probes nothing while others compute: ", busy);
    if (busy != last) spdlog::info("{}", state_.doing);
    last = busy;
    changed_.wait_for(lock, absl::ToChronoNanoseconds(kLook), [this] { return stopped_; });
    if (stopped_) return absl::CancelledError("stopped");
  }
}

// Ends with the epoch: always with an error.
absl::Status Daemon::RunEpoch() {
  gave_way_ = false;
  RETURN_IF_ERROR(WaitUntilIdle());
  {
    const std::lock_guard lock(mutex_);
    state_.doing = "waits for the others";
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Group> group,
                   Group::Meet(agents_, backend_, options_.group));
  const std::string ring = group->communicator().ToString();
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return absl::CancelledError("stopped");
    state_.epoch = group->epoch();
    state_.doing = ring;
    group_ = group;
  }
  metrics_.Began(group->epoch());
  spdlog::info("epoch {} begins: {}", group->epoch(), ring);
  Prober prober(backend_.device(), group->communicator(), options_.sweep_bytes);
  absl::Status status = GiveWay();  // whoever came while the others were waited for
  if (status.ok()) status = Measure(prober, true);
  while (status.ok()) {
    status = Rest(*group);
    if (status.ok()) status = Measure(prober, false);
  }
  const absl::Status fate = group->fate();
  if (!fate.ok()) status = fate;  // said before this rank could
  if (!gave_way_) metrics_.CommunicatorFailed(status);
  group->End(std::string(status.message()));
  return status;
}

absl::Status Daemon::Rest(Group& group) {
  const SteadyTime until = SteadyIn(options_.probe_every);
  if (options_.busy == nullptr) return group.WaitUntil(WallTime(until));
  while (SteadyNow() < until) {
    RETURN_IF_ERROR(group.WaitUntil(WallTime(std::min(until, SteadyIn(kLook)))));
    RETURN_IF_ERROR(GiveWay());
  }
  return absl::OkStatus();
}

absl::Status Daemon::GiveWay() {
  const std::string busy = options_.busy == nullptr ? "" : options_.busy();
  if (busy.empty()) return absl::OkStatus();
  gave_way_ = true;
  return absl::CancelledError(
      absl::StrCat("rank ", options_.group.rank, " gives way to who computes there: ", busy));
}

// The communicator's error. A planner that is away, and payloads that are wrong, are none.
absl::Status Daemon::Measure(Prober& prober, bool whole) {
  ASSIGN_OR_RETURN(const Probe probe, whole ? prober.Whole() : prober.Short());
  metrics_.verify_mismatches.Increment(static_cast<double>(probe.wrong));
  metrics_.straggler_ratio.Set(probe.straggler_ratio);
  if (probe.wrong == 0) {
    failures_ = 0;
    metrics_.last_probe.Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  } else {
    Trouble("probe", absl::DataLossError(absl::StrCat(probe.wrong, " elements came out wrong")));
  }
  {
    const std::lock_guard lock(mutex_);
    state_.straggler_ratio = probe.straggler_ratio;
    state_.slowest = probe.slowest;
    if (probe.wrong == 0) state_.trouble.clear();
  }
  const absl::Status known = reporter_.Refresh();
  for (const CollectiveRow& row : probe.sweep.collectives) {
    metrics_.Ran(row, options_.group.size, reporter_.PredictedPs(row));
  }
  for (const CopyRow& row : probe.sweep.copies) metrics_.Copied(row);
  SetReady(probe.wrong == 0);  // whoever sees it finds the probe's counts
  const absl::Status told =
      options_.group.rank == 0 ? reporter_.Report(probe.sweep) : absl::OkStatus();
  if (!told.ok()) spdlog::warn("costs are not reported: {}", OneLine(told.message()));
  if (!known.ok()) spdlog::warn("no prediction: {}", OneLine(known.message()));
  return absl::OkStatus();
}

void Daemon::SetReady(bool ready) {
  {
    const std::lock_guard lock(mutex_);
    state_.ready = ready;
    was_ready_ = was_ready_ || ready;
  }
  metrics_.ready.Set(ready ? 1 : 0);
  changed_.notify_all();
}

void Daemon::Trouble(const std::string& what, const absl::Status& error) {
  const std::string text = absl::StrCat(what, ": ", OneLine(error.message()));
  spdlog::warn("{}", text);
  const std::lock_guard lock(mutex_);
  state_.trouble = text;
}

void Daemon::Pause(int failures) {
  absl::BitGen random;
  const absl::Duration full = kFirstPause * (1 << std::min(failures, 10));
  const absl::Duration pause = std::min(full, kLongestPause) * absl::Uniform(random, 0.5, 1.0);
  std::unique_lock lock(mutex_);
  state_.doing = "pauses before the next rendezvous";
  changed_.wait_for(lock, absl::ToChronoNanoseconds(pause), [this] { return stopped_; });
}

void Daemon::Stop() {
  std::shared_ptr<Group> group;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    group = group_;
  }
  changed_.notify_all();
  if (group != nullptr) group->End(absl::StrCat("rank ", options_.group.rank, " was stopped"));
  agents_.StopWaiting();
}

Daemon::State Daemon::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

bool Daemon::WaitUntilReady() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return was_ready_ || stopped_; });
  return was_ready_;
}

}  // namespace bucketd::agent
