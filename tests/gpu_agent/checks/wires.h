// Ranks of the machine with a communicator of ours each, for checks of NCCL itself.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "gpu_agent/cuda/nccl_communicator.h"
#include "tests/gpu_agent/executor_fixture.h"
#include "tests/gpu_agent/shared_context.h"
#include "tests/gpu_agent/trainer.h"

namespace bucketd::agent {

// How often, on a GPU and where one is simulated. A sanitizer's runs say how often themselves.
inline int Times(int on_gpu, int simulated) {
  const char* said = std::getenv("GPU_CHECKS_TIMES");
  if (said != nullptr && *said != '\0') return std::min(on_gpu, std::atoi(said));
  return Simulated() ? simulated : on_gpu;
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

// Communicators of the check's own, on one stream a rank.
class Wires {
 public:
  Wires(int rank, const ncclUniqueId& id, SharedContext& shared)
      : shared_(shared),
        device_(GpuOf(rank), "a trainer's GPU", Api()),
        stream_(*device_.NewStream("wire")),
        memory_(*device_.Allocate(int64_t{1} << 22)) {
    auto made = NcclCommunicator::Create(Api(), device_,
                                         {std::string(id.internal, sizeof(id.internal)), rank,
                                          kRanks, "check", absl::Seconds(20), nullptr});
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) communicator_ = *std::move(made);
    const std::vector<std::byte> zeros(1 << 12);
    EXPECT_TRUE(device_.Copy(*stream_, zeros.data(), memory_->data(), 1 << 12).ok());
    Meet();
    Launch();
    EXPECT_TRUE(Wait().ok());
  }
  // All ranks.
  void Meet() { shared_.Meet(); }
  Communicator& communicator() { return *communicator_; }
  Stream& stream() { return *stream_; }
  std::byte* memory() { return memory_->data(); }
  // A small one.
  void Launch() {
    const Collective one{CollectiveKind::kAllReduce,
                         memory_->data(),
                         memory_->data(),
                         1024,
                         DType::kF32,
                         ReduceOp::kSum};
    const absl::Status launched = communicator_->Launch(*stream_, {&one, 1});
    EXPECT_TRUE(launched.ok()) << launched;
  }
  absl::Status Wait() { return stream_->Record()->Wait(absl::Now() + absl::Seconds(30)); }

 private:
  SharedContext& shared_;
  CudaDevice device_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Communicator> communicator_;
};

inline void OnWires(const std::function<void(Wires&, int)>& run) {
  ncclUniqueId id;
  ASSERT_EQ(Api()->GetUniqueId(&id), ncclSuccess);
  SharedContext shared(kRanks);
  OnRanks(kRanks, [&](int rank) {
    Wires wires(rank, id, shared);
    run(wires, rank);
  });
}

}  // namespace bucketd::agent
