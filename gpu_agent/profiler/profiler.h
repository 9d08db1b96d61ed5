// What this process tells its node's agent of the collectives that NCCL runs in it: one for the
// process, made at its first communicator. NCCL's versions are plugin.cc's.
//
// Told of by what NCCL's profiler sees, so of whoever asked for them: torch.distributed above all.
// Communicators of our own executor are known by their names (comm/nccl_name.h), and told apart.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "gpu_agent/profiler/kernel_times.h"
#include "gpu_agent/profiler/nccl_profiler_abi.h"
#include "gpu_agent/telemetry/writer.h"

namespace bucketd::agent {

// Thread-safe. Nothing waits, and nothing but a communicator's beginning takes memory. Handles are
// numbers, 0 for none, and may be any: one that is not known is taken for nothing.
class Profiler {
 public:
  struct Settings {
    std::string agent, job, link_class;
  };
  struct Communicator {
    uint64_t id = 0;  // the same on its ranks
    std::string name;
    int nodes = 0, ranks = 0;
  };
  static constexpr size_t kMostCommunicators = 256;  // at a time; others' collectives are lost

  // By BUCKETD_AGENT, BUCKETD_JOB and BUCKETD_LINK_CLASS. FAILED_PRECONDITION where there is no
  // agent to tell.
  static absl::StatusOr<Settings> FromEnvironment();
  static absl::StatusOr<std::unique_ptr<Profiler>> Create(const Settings& settings);

  uint64_t Begin(const Communicator& communicator);
  void End(uint64_t communicator);

  // The kinds of events, each with its handle. A launch of two collectives or more is one kernel,
  // which says nothing of each: they are in no cost sample.
  uint64_t Called(const nccl::CollApi& call) const;
  uint64_t Launch() { return launches_.fetch_add(1) << 8 | static_cast<uint64_t>(Handle::kLaunch); }
  uint64_t Launched(uint64_t communicator, uint64_t call, uint64_t launch,
                    const nccl::CollV4& coll);
  uint64_t ChannelBegan(uint64_t collective, const nccl::KernelCh& channel);
  void ChannelEnded(uint64_t channel, uint64_t at_ns);

 private:
  struct Known {
    uint32_t generation = 0;
    bool alive = false;
    uint64_t plan = 0;
    int ranks = 0;
    uint8_t link = kNoLink;
    uint64_t last_launch = 0, last_collective = 0;
  };

  Profiler(std::unique_ptr<RingWriter> ring, std::string link_class);
  uint8_t LinkOf(const Communicator& communicator);
  std::optional<RunRecord> RecordOf(const Known& known, uint64_t call,
                                    const nccl::CollV4& coll) const;
  Known* Of(uint64_t communicator);
  // What was lost since, for the agent to count.
  void TellLost(uint64_t more = 0);

  const std::unique_ptr<RingWriter> ring_;
  const std::string link_class_;
  KernelTimes times_;
  std::mutex mutex_;
  std::array<Known, kMostCommunicators> known_;  // under mutex_
  std::atomic<uint64_t> launches_{1};
};

}  // namespace bucketd::agent
