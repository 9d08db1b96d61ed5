// What a node's trainers report: to Prometheus, and as cost samples to the planner.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cost_client.h"

#include "gpu_agent/daemon/agent_metrics.h"
#include "gpu_agent/daemon/training_costs.h"
#include "gpu_agent/daemon/training_metrics.h"
#include "gpu_agent/telemetry/collector.h"
#include "server/process/log_limit.h"

namespace bucketd::agent {

struct TrainingOptions {
  CollectorOptions collector;     // no socket: there is nothing to collect
  std::vector<std::string> jobs;  // with a label of their own
  std::string planner;            // address; "": nobody is told
  client::ClientTls tls;
  std::string profile, host;  // a name, without version; "": nobody is told
  absl::Duration report_every = absl::Seconds(60);
};

class Training : private CollectorEvents {
 public:
  // `registry` and `reports` outlive it. Errors as Collector::Start.
  static absl::StatusOr<std::unique_ptr<Training>> Start(TrainingOptions options,
                                                         prometheus::Registry& registry,
                                                         ReportMetrics& reports);
  ~Training() override;

  // How many processes report now. Thread-safe.
  int trainers() const { return present_; }

 private:
  // A ring, as it was last seen.
  struct Trainer {
    JobMetrics* job = nullptr;
    bool of_kernels = false;  // NCCL's profiler plugin writes it, beside the executor's or alone
    double arena = 0;
    std::array<double, JobMetrics::kParts> peak{}, predicted_peak{};  // of its plans, by part
    uint64_t dropped = 0, invalid = 0;
  };

  Training(TrainingOptions options, prometheus::Registry& registry, ReportMetrics& reports);
  void Opened(int ring) override;
  void Refused(const std::string& why) override;
  void Ran(int ring, const RingReader& reader, const std::vector<RunRecord>& records) override;
  void Closed(int ring, const std::string& why) override;
  JobMetrics& JobOf(const std::string& name);
  void Remember(Trainer& trainer, const RingReader& reader, const std::vector<RunRecord>& records);
  void SetGauges(JobMetrics& job);
  int Present() const;
  void Complain(const char* what, const std::string& why);
  void ReportAll();

  const TrainingOptions options_;
  ReportMetrics& reports_;
  RingMetrics rings_;
  std::map<std::string, std::unique_ptr<JobMetrics>> jobs_;
  std::unique_ptr<JobMetrics> others_;
  std::map<int, Trainer> trainers_;  // of the collector's thread
  std::atomic<int> present_{0};      // processes that have these
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
  TrainingCosts costs_;  // under mutex_
  LogLimit complaints_;  // of the collector's thread
  std::thread reporter_;
  std::unique_ptr<Collector> collector_;  // last: it calls
};

}  // namespace bucketd::agent
