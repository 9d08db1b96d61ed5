// Between an agent's measurements and a cost profile of the planner: what the profile predicts,
// and what was measured, sent back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cost_client.h"

#include "gpu_agent/daemon/agent_metrics.h"
#include "gpu_agent/run/sweep.h"
#include "passes/cost/cost_report.h"
#include "passes/cost/measured_link.h"
#include "passes/cost/profile.h"

namespace bucketd::agent {

struct ReporterOptions {
  std::string profile;  // a name, without version; "": nothing is predicted or reported
  std::string link_class;
  std::string host, group;  // for people, but that the host is who has one vote
  int ranks = 2;
  int ranks_per_node = 0;  // 0: all
};

// Sends what was measured as the planner's samples. Counted; OK if it took all of them.
absl::Status SendSamples(client::CostClient& client, ReportMetrics& metrics,
                         const v1::ReportHeader& header,
                         const std::vector<CollectiveSample>& samples);

// One thread uses it.
class Reporter {
 public:
  // Both outlive it.
  Reporter(client::CostClient& client, ReportMetrics& metrics, ReporterOptions options);

  // Fetches NAME@latest; the one from before stays where the planner does not answer.
  absl::Status Refresh();
  // Of one repetition, on the wire; 0 where no profile is known.
  int64_t PredictedPs(const CollectiveRow& row) const;
  // The median of each row. Counted; OK if the planner took all of it, or there is nobody to tell.
  absl::Status Report(const SweepResult& sweep);

 private:
  LinkClass ClassOf(const CollectiveRow& row) const;

  client::CostClient& client_;
  ReportMetrics& metrics_;
  const ReporterOptions options_;
  std::optional<CostProfile> profile_;
};

}  // namespace bucketd::agent
