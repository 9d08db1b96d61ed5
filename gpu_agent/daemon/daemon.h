// An agent of a node: meets the others of its group at the planner, measures what their collectives
// take, tells the planner, and begins anew when the group's epoch is over. Whatever goes wrong
// while it runs is logged, counted and tried again, with pauses that grow and differ between ranks.
// While somebody computes on its node it is in no group, and so probes nothing, as do the others,
// and takes no memory of a GPU.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/agent_client.h"
#include "client/cost_client.h"

#include "gpu_agent/backend/backend.h"
#include "gpu_agent/daemon/agent_metrics.h"
#include "gpu_agent/daemon/prober.h"
#include "gpu_agent/daemon/reporter.h"
#include "gpu_agent/run/group.h"

namespace bucketd::agent {

struct DaemonOptions {
  std::string planner;  // address
  client::ClientTls tls;
  GroupOptions group;
  std::string profile, link_class, host;
  int per_node = 1;  // agents of the group on each node, with TCP
  absl::Duration probe_every = absl::Seconds(60);
  int64_t sweep_bytes = 8 << 20;  // largest message
  // Who computes on this node, "" if nobody does; asked once a second. Null: it does not matter.
  std::function<std::string()> busy;
};

class Daemon {
 public:
  // `backend` and both metrics outlive it. Sets the options' `agrees`.
  Daemon(DaemonOptions options, Backend& backend, AgentMetrics& metrics, ReportMetrics& reports);

  // Until Stop(), then OK. An error only if the group, which has never met, cannot meet as it was
  // described (the ranks differ, or the planner finds the description invalid), or
  // Backend::Check's. Call it once.
  absl::Status Run();
  // Tells the others, through the planner. Thread-safe; blocks for as long as a short call.
  void Stop();

  // Thread-safe.
  struct State {
    bool ready = false;   // connected, and the last probe ended well
    uint64_t epoch = 0;   // the last one; 0: none yet
    std::string doing;    // "waits for the others", "ring of 3 ranks over unix sockets, rank 0"
    std::string trouble;  // the last error, since the last probe that ended well; ""
    double straggler_ratio = 0.0;
    int slowest = 0;
  };
  State state() const;
  // Blocks until the daemon is ready for the first time. False: it was stopped before.
  bool WaitUntilReady();

 private:
  // Off the GPU. CANCELLED: it was stopped before.
  absl::Status WaitUntilIdle();
  absl::Status RunEpoch();
  // Until the next probe; an error if the epoch is over, or GiveWay's.
  absl::Status Rest(Group& group);
  // An error, with which the epoch ends here, if somebody computes.
  absl::Status GiveWay();
  absl::Status Measure(Prober& prober, bool whole);
  void SetReady(bool ready);
  void Trouble(const std::string& what, const absl::Status& error);
  void Pause(int failures);

  Backend& backend_;
  const DaemonOptions options_;
  AgentMetrics& metrics_;
  client::AgentClient agents_;
  client::CostClient costs_;
  Reporter reporter_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  bool was_ready_ = false;
  State state_;
  std::shared_ptr<Group> group_;
  // Of Run's thread: in a row; the last epoch ended here for whoever computes.
  int failures_ = 0;
  bool gave_way_ = false;
};

}  // namespace bucketd::agent
