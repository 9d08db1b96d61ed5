#include "gpu_agent/daemon/training.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "gpu_agent/daemon/reporter.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {
namespace {

// The rings of a job: a trainer has one of each kind at most, the executor's and the plugin's.
class RingCount {
 public:
  void Add(bool of_kernels) { ++count_[of_kernels ? 1 : 0]; }
  int trainers() const { return std::max(count_[0], count_[1]); }

 private:
  std::array<int, 2> count_{};
};

constexpr std::chrono::seconds kDeadline{5};
constexpr std::chrono::minutes kComplaints{1};  // between two of one text

const RingPlan* PlanOf(const RingReader& reader, const RunRecord& record) {
  const auto& plans = reader.plans();
  const auto at = std::find_if(plans.begin(), plans.end(),
                               [&](const RingPlan& plan) { return plan.plan == record.plan; });
  return at == plans.end() ? nullptr : &*at;
}

void Raise(std::array<double, JobMetrics::kParts>& most, const RingPlan& plan, int64_t bytes) {
  double& of_part = most[JobMetrics::PartOf(plan)];
  of_part = std::max(of_part, static_cast<double>(bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Training>> Training::Start(TrainingOptions options,
                                                          prometheus::Registry& registry,
                                                          ReportMetrics& reports) {
  std::unique_ptr<Training> training(new Training(std::move(options), registry, reports));
  ASSIGN_OR_RETURN(training->collector_, Collector::Start(training->options_.collector, *training));
  return training;
}

Training::Training(TrainingOptions options, prometheus::Registry& registry, ReportMetrics& reports)
    : options_(std::move(options)),
      reports_(reports),
      rings_(registry),
      others_(std::make_unique<JobMetrics>(registry, "other")),
      complaints_(1, kComplaints) {
  for (const std::string& job : options_.jobs) {
    jobs_[job] = std::make_unique<JobMetrics>(registry, job);
  }
  if (options_.planner.empty() || options_.profile.empty()) return;
  reporter_ = std::thread([this] { ReportAll(); });
}

Training::~Training() {
  collector_ = nullptr;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_all();
  if (reporter_.joinable()) reporter_.join();
}

void Training::Opened(int ring) {
  trainers_[ring] = {};
  present_ = Present();
}

void Training::Refused(const std::string& why) {
  rings_.refused.Increment();
  Complain("a trainer's telemetry is refused", why);
}

// A trainer comes again, and there may be many.
void Training::Complain(const char* what, const std::string& why) {
  const std::string line = absl::StrCat(what, ": ", absl::Utf8SafeCEscape(why));
  const auto left_out = complaints_.Admit(line, LogLimit::Time::clock::now());
  if (!left_out.has_value()) return;
  const std::string more = absl::StrCat("; and ", *left_out, " times since this was said last");
  spdlog::warn("{}{}", line, *left_out > 0 ? more : "");
}

JobMetrics& Training::JobOf(const std::string& name) {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? *others_ : *found->second;
}

void Training::Ran(int ring, const RingReader& reader, const std::vector<RunRecord>& records) {
  Trainer& trainer = trainers_[ring];
  Remember(trainer, reader, records);
  if (records.empty()) return;
  rings_.records.Increment(static_cast<double>(records.size()));
  const std::lock_guard lock(mutex_);
  for (const RunRecord& record : records) {
    trainer.job->Ran(record, PlanOf(reader, record));
    // Buckets are costs by what they take on the wire.
    if (record.link == kNoLink || record.plan == kKernelsOfBuckets) continue;
    const auto met = costs_.Add(reader.links()[record.link], record);
    if (met.has_value()) trainer.job->Met(*met);
  }
}

void Training::Remember(Trainer& trainer, const RingReader& reader,
                        const std::vector<RunRecord>& records) {
  rings_.dropped.Increment(static_cast<double>(reader.dropped() - trainer.dropped));
  rings_.invalid.Increment(static_cast<double>(reader.invalid() - trainer.invalid));
  trainer.dropped = reader.dropped();
  trainer.invalid = reader.invalid();
  double arena = 0;
  for (const RingPlan& plan : reader.plans()) arena += static_cast<double>(plan.arena_bytes);
  const bool same = trainer.job != nullptr && arena == trainer.arena;
  if (same && records.empty()) return;
  trainer.job = &JobOf(reader.job());
  trainer.arena = arena;
  for (const RingPlan& plan : reader.plans()) {
    trainer.of_kernels = trainer.of_kernels || IsOfKernels(plan.plan);
    Raise(trainer.predicted_peak, plan, plan.predicted_peak_bytes);
  }
  for (const RunRecord& record : records) {
    const RingPlan* plan = PlanOf(reader, record);
    if (plan != nullptr) Raise(trainer.peak, *plan, record.peak_bytes);
  }
  SetGauges(*trainer.job);
  present_ = Present();
}

void Training::SetGauges(JobMetrics& job) {
  Trainer most;
  RingCount count;
  for (const auto& [ring, trainer] : trainers_) {
    if (trainer.job != &job) continue;
    count.Add(trainer.of_kernels);
    most.arena = std::max(most.arena, trainer.arena);
    for (size_t part = 0; part < JobMetrics::kParts; ++part) {
      most.peak[part] = std::max(most.peak[part], trainer.peak[part]);
      most.predicted_peak[part] = std::max(most.predicted_peak[part], trainer.predicted_peak[part]);
    }
  }
  job.trainers.Set(count.trainers());
  job.arena_bytes.Set(most.arena);
  for (size_t part = 0; part < JobMetrics::kParts; ++part) {
    job.SetPeaks(part, most.peak[part], most.predicted_peak[part]);
  }
}

int Training::Present() const {
  std::map<const JobMetrics*, RingCount> counts;
  for (const auto& [ring, trainer] : trainers_) {
    if (trainer.job != nullptr) counts[trainer.job].Add(trainer.of_kernels);
  }
  int present = 0;
  for (const auto& [job, count] : counts) present += count.trainers();
  // Of rings that were not read yet nothing is known but that somebody is there.
  return std::max(present, trainers_.empty() ? 0 : 1);
}

void Training::Closed(int ring, const std::string& why) {
  if (!why.empty()) {
    rings_.broken.Increment();
    Complain("a trainer's telemetry is over", why);
  }
  JobMetrics* const job = trainers_[ring].job;
  trainers_.erase(ring);
  present_ = Present();
  if (job != nullptr) SetGauges(*job);
}

void Training::ReportAll() {
  client::CostClient client(options_.planner, options_.tls, kDeadline);
  v1::ReportHeader header;
  header.set_profile(options_.profile);
  header.set_reporter(options_.host);
  header.set_job("training");
  header.set_tool("bucket-agent telemetry");
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    stop_.wait_for(lock, absl::ToChronoNanoseconds(options_.report_every));
    const std::vector<CollectiveSample> samples = costs_.Take();
    if (samples.empty()) continue;
    lock.unlock();
    const absl::Status told = SendSamples(client, reports_, header, samples);
    if (!told.ok()) {
      spdlog::warn("costs of training are not reported: {}", absl::Utf8SafeCEscape(told.message()));
    }
    lock.lock();
  }
}

}  // namespace bucketd::agent
