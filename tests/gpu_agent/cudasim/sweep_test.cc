// Calibration on simulated GPUs.
#include "gpu_agent/run/sweep.h"

#include <future>
#include <memory>
#include <vector>

#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/gpus.h"

namespace bucketd::agent {
namespace {

using ::testing::IsEmpty;

// A launch takes the host longer than a small collective takes the GPUs. What was measured is the
// collective, and the launch beside it.
TEST(SweepTest, TheHostsLaunchIsNotInACollectivesTime) {
  constexpr int kPeers = 2;
  constexpr int64_t kLaunch = 500'000;
  sim::World world({.devices = kPeers, .launch_ns = kLaunch});
  Meeting meeting(world, kPeers, 1);
  OnRanks(kPeers, [&](int rank) {
    CudaDevice device(rank, "cuda simulated", world.nccl_api());
    const auto communicator = *meeting.Join(device, rank, 0, absl::Seconds(30));
    const auto swept =
        Sweep(device, *communicator, {.min_bytes = 4096, .max_bytes = 4096}, nullptr);
    ASSERT_TRUE(swept.ok()) << swept.status();
    EXPECT_EQ(swept->collectives.size(), 12u);
    for (const CollectiveRow& row : swept->collectives) {
      EXPECT_EQ(row.wrong, 0);
      EXPECT_LT(Median(row.picoseconds), kLaunch * 1000) << Name(row.kind);
    }
  });
  world.Drain();
  EXPECT_THAT(world.findings(), IsEmpty());
  EXPECT_EQ(world.allocations(), 0u);
}

// As one that is killed on the same node: NCCL's kernel waits for its flags, and NCCL says nothing.
TEST(SweepTest, APeerThatIsNotHeardOfAnyMoreEndsAWaitAtTheTimeout) {
  constexpr int kPeers = 2;
  sim::World world({.devices = kPeers});
  Meeting meeting(world, kPeers, 1);
  std::promise<void> over;
  OnRanks(kPeers, [&](int rank) {
    CudaDevice device(rank, "cuda simulated", world.nccl_api());
    const auto memory = *device.Allocate(4096);
    const auto stream = *device.NewStream("one");
    const auto communicator = *meeting.Join(device, rank, 0, absl::Seconds(1));
    std::vector<int64_t> values = {rank};
    const auto reduce = [&] {
      return ReduceOverRanks(device, *communicator, *stream, memory->data(), ReduceOp::kMax,
                             values);
    };
    EXPECT_EQ(reduce(), absl::OkStatus());
    EXPECT_EQ(values[0], 1);
    if (rank == 1) return over.get_future().wait();
    const absl::Status alone = reduce();
    EXPECT_EQ(alone.code(), absl::StatusCode::kDeadlineExceeded) << alone;
    EXPECT_EQ(communicator->health(), alone);
    over.set_value();
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

}  // namespace
}  // namespace bucketd::agent
