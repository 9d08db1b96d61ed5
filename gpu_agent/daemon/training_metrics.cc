#include "gpu_agent/daemon/training_metrics.h"

#include <algorithm>

#include "gpu_agent/daemon/series.h"
#include "passes/base/types.h"

namespace bucketd::agent {
namespace {

using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;

// Up to so much.
constexpr std::array<int64_t, 4> kSizeEnds = {64 << 10, 1 << 20, 16 << 20, 256 << 20};
constexpr std::array<const char*, 5> kSizeNames = {"64KiB", "1MiB", "16MiB", "256MiB", "more"};
constexpr std::array<const char*, 4> kPartNames = {"other", "forward", "backward", "joint"};
constexpr std::array<const char*, 2> kWhose = {"torch", "executor"};  // by the record's plan

// 8 us to 4 s, each four times the one before.
Histogram::BucketBoundaries Durations() {
  Histogram::BucketBoundaries bounds;
  for (double bound = 8e-6; bound < 4.4; bound *= 4) bounds.push_back(bound);
  return bounds;
}

double SecondsFromNs(uint32_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

JobMetrics::JobMetrics(Registry& r, const std::string& job)
    : ratio_(AddHistogram(r, "bucket_agent_bucket_predicted_over_measured_ratio",
                          "What a plan predicts of a bucket on the wire over what it took, from "
                          "when the node's last rank came.",
                          {{"training", job}},
                          {0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2, 4, 10})),
      trainers(AddGauge(r, "bucket_agent_trainers", "Processes that report to this agent.",
                        {{"training", job}})),
      arena_bytes(AddGauge(r, "bucket_agent_arena_bytes",
                           "Memory that a trainer's open executors have for their plans' buckets.",
                           {{"training", job}})) {
  for (size_t k = 0; k < kKinds; ++k) {
    for (size_t s = 0; s < kSizes; ++s) {
      const Labels labels = {
          {"training", job}, {"collective", kKindNames[k]}, {"size", kSizeNames[s]}};
      Class& one = classes_[k][s];
      one.wire = &AddHistogram(r, "bucket_agent_bucket_wire_seconds",
                               "A bucket on the wire, as one rank sees it: with its wait for "
                               "others.",
                               labels, Durations());
      one.bytes =
          &AddCounter(r, "bucket_agent_bucket_bytes_total", "Of these buckets' messages.", labels);
      one.collectives = &AddCounter(r, "bucket_agent_bucket_collectives_total",
                                    "Buckets that all ranks of the node have told of.", labels);
      one.collective =
          &AddCounter(r, "bucket_agent_bucket_collective_seconds_total",
                      "Their time on the wire, from when the node's last rank came.", labels);
      one.predicted = &AddCounter(r, "bucket_agent_bucket_predicted_seconds_total",
                                  "What their plans predict of the same buckets.", labels);
      AddKernels(r, labels, k, s);
    }
  }
  for (size_t d = 0; d < copies_.size(); ++d) {
    copies_[d] = &AddCounter(r, "bucket_agent_bucket_copy_seconds_total",
                             "Copy-in and copy-out of packed buckets.",
                             {{"training", job}, {"direction", kDirectionNames[d]}});
  }
  for (size_t p = 0; p < kParts; ++p) {
    const Labels labels = {{"training", job}, {"part", kPartNames[p]}};
    parts_[p].runs = &AddCounter(r, "bucket_agent_plan_runs_total",
                                 "Runs of a step's part by its plan, on one rank each.", labels);
    parts_[p].exposed =
        &AddCounter(r, "bucket_agent_plan_exposed_seconds_total",
                    "That trainers stood and waited for buckets, on one rank each.", labels);
    parts_[p].predicted_exposed =
        &AddCounter(r, "bucket_agent_plan_predicted_exposed_seconds_total",
                    "As the plans predict it of their runs, for all waits: of collectives in no "
                    "bucket, and of buckets that the executor does not run, too.",
                    labels);
    parts_[p].peak = &AddGauge(r, "bucket_agent_plan_peak_bytes",
                               "Most memory that a run of a part's plan took on one rank, without "
                               "what was there before but the run's own inputs and a GPU's arena; "
                               "0: not seen.",
                               labels);
    parts_[p].predicted_peak =
        &AddGauge(r, "bucket_agent_plan_predicted_peak_bytes",
                  "Peak that the part's plan with the most predicts, without parameters and "
                  "buffers: the same.",
                  labels);
  }
}

void JobMetrics::AddKernels(Registry& r, const Labels& labels, size_t kind, size_t size) {
  for (size_t w = 0; w < kWhose.size(); ++w) {
    Labels whose = labels;
    whose["communicator"] = kWhose[w];
    Kernels& one = kernels_[w][kind][size];
    one.ran = &AddCounter(r, "bucket_agent_kernel_collectives_total",
                          "Collectives whose kernels NCCL's profiler plugin saw, on one rank each.",
                          whose);
    one.seconds = &AddCounter(r, "bucket_agent_kernel_seconds_total",
                              "From their first channel's start to their last one's end, by the "
                              "GPU's clock: with their wait for others.",
                              whose);
    one.bytes =
        &AddCounter(r, "bucket_agent_kernel_bytes_total", "Of these collectives' messages.", whose);
  }
  Torchs& torchs = torchs_[kind][size];
  torchs.collectives = &AddCounter(r, "bucket_agent_torch_collectives_total",
                                   "Collectives that the executor did not run, which all ranks of "
                                   "the node have told of.",
                                   labels);
  torchs.seconds =
      &AddCounter(r, "bucket_agent_torch_collective_seconds_total",
                  "Their time in the kernel, from when the node's last rank came.", labels);
}

size_t JobMetrics::PartOf(const RingPlan& plan) { return plan.part < kParts ? plan.part : 0; }

void JobMetrics::SetPeaks(size_t part, double bytes, double predicted_bytes) {
  parts_[part].peak->Set(bytes);
  parts_[part].predicted_peak->Set(predicted_bytes);
}

template <typename Of>
Of& JobMetrics::In(ByClass<Of>& classes, const RunRecord& record) {
  const auto* const end = std::lower_bound(kSizeEnds.begin(), kSizeEnds.end(), record.bytes);
  const size_t kind = IndexOf(static_cast<CollectiveKind>(record.kind));
  return classes[kind][static_cast<size_t>(end - kSizeEnds.begin())];
}

void JobMetrics::Ran(const RunRecord& record, const RingPlan* plan) {
  if (IsOfKernels(record.plan)) {
    Kernels& kernels = In(kernels_[record.plan], record);
    kernels.ran->Increment();
    kernels.seconds->Increment(SecondsFromNs(record.wire_ns));
    kernels.bytes->Increment(static_cast<double>(record.bytes));
    return;
  }
  Class& of = In(classes_, record);
  of.wire->Observe(SecondsFromNs(record.wire_ns));
  of.bytes->Increment(static_cast<double>(record.bytes));
  copies_[0]->Increment(SecondsFromNs(record.pack_ns));
  copies_[1]->Increment(SecondsFromNs(record.unpack_ns));
  // Where the ring had no room for its plan: what it exposes would be held against the predictions
  // of others.
  if (plan == nullptr) return;
  Part& part = parts_[PartOf(*plan)];
  part.exposed->Increment(SecondsFromNs(record.exposed_ns));
  if (record.bucket != 0) return;
  part.runs->Increment();
  part.predicted_exposed->Increment(static_cast<double>(plan->predicted_exposed_ps) * 1e-12);
}

void JobMetrics::Met(const RunRecord& last) {
  if (last.plan == kTorchsOwn) {
    Torchs& torchs = In(torchs_, last);
    torchs.collectives->Increment();
    torchs.seconds->Increment(SecondsFromNs(last.wire_ns));
    return;
  }
  if (last.predicted_ns == 0 || last.wire_ns == 0) return;
  Class& of = In(classes_, last);
  of.collectives->Increment();
  of.collective->Increment(SecondsFromNs(last.wire_ns));
  of.predicted->Increment(SecondsFromNs(last.predicted_ns));
  ratio_.Observe(static_cast<double>(last.predicted_ns) / static_cast<double>(last.wire_ns));
}

RingMetrics::RingMetrics(Registry& r)
    : records(AddCounter(r, "bucket_agent_telemetry_records_total",
                         "Records of trainers: read, made no sense, or lost for want of room.",
                         {{"result", "read"}})),
      invalid(AddCounter(r, "bucket_agent_telemetry_records_total", "", {{"result", "invalid"}})),
      dropped(AddCounter(r, "bucket_agent_telemetry_records_total", "", {{"result", "dropped"}})),
      refused(
          AddCounter(r, "bucket_agent_telemetry_errors_total",
                     "Trainers that were refused, and those whose memory did not hold together.",
                     {{"what", "refused"}})),
      broken(AddCounter(r, "bucket_agent_telemetry_errors_total", "", {{"what", "broken"}})) {}

}  // namespace bucketd::agent
