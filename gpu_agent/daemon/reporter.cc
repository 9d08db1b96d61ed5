#include "gpu_agent/daemon/reporter.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "passes/cost/cost_report.h"
#include "passes/cost/device_model.h"
#include "passes/io/proto_io.h"

namespace bucketd::agent {

Reporter::Reporter(client::CostClient& client, ReportMetrics& metrics, ReporterOptions options)
    : client_(client), metrics_(metrics), options_(std::move(options)) {}

absl::Status Reporter::Refresh() {
  if (options_.profile.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const v1::GetProfileResponse got,
                   client_.Get(absl::StrCat(options_.profile, "@latest")));
  ASSIGN_OR_RETURN(profile_, ProfileFromProto(got.profile()));
  return absl::OkStatus();
}

LinkClass Reporter::ClassOf(const CollectiveRow& row) const {
  return {row.kind, options_.link_class, options_.ranks,
          RanksPerNode(options_.ranks, options_.ranks_per_node), row.dtype};
}

// The terms of Costs::CollectivePs.
int64_t Reporter::PredictedPs(const CollectiveRow& row) const {
  if (!profile_) return 0;
  const StatedCosts::Link link = LinkUnder(*profile_, ClassOf(row));
  const double wire = WireFactor(row.kind, options_.ranks) * static_cast<double>(row.bytes) /
                      link.busbw_bytes_per_s;
  const double us = link.alpha_us + (row.launches - 1) * profile_->gamma_us + wire * 1e6;
  return static_cast<int64_t>(us * 1e6);
}

absl::Status Reporter::Report(const SweepResult& sweep) {
  if (options_.profile.empty()) return absl::OkStatus();
  v1::ReportHeader header;
  header.set_profile(options_.profile);
  header.set_reporter(options_.host);
  header.set_job(options_.group.substr(0, 128));
  header.set_tool("bucket-agent daemon");
  std::vector<CollectiveSample> samples;
  for (const CollectiveRow& row : sweep.collectives) {
    if (row.wrong != 0) continue;
    CollectiveSample& sample = samples.emplace_back();
    sample.of = ClassOf(row);
    sample.launches = row.launches;
    sample.packed = row.in_place;  // as packed buckets run
    sample.bytes = row.bytes;
    sample.picoseconds = Median(row.picoseconds);
  }
  return SendSamples(client_, metrics_, header, samples);
}

absl::Status SendSamples(client::CostClient& client, ReportMetrics& metrics,
                         const v1::ReportHeader& header,
                         const std::vector<CollectiveSample>& samples) {
  std::vector<v1::CollectiveSample> messages;
  for (const CollectiveSample& sample : samples) SampleToProto(sample, messages.emplace_back());
  const auto answer = client.Report(header, messages);
  if (!answer.ok()) {
    const bool away =
        absl::IsUnavailable(answer.status()) || absl::IsDeadlineExceeded(answer.status());
    metrics.of(away ? ReportResult::kUnreachable : ReportResult::kRefused).Increment();
    return answer.status();
  }
  metrics.of(answer->refused() == 0 ? ReportResult::kAccepted : ReportResult::kRefused).Increment();
  if (answer->refused() == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the planner refused ", answer->refused(),
                                                    " samples: ", answer->first_refusal()));
}

}  // namespace bucketd::agent
