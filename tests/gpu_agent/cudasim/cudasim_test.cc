// gpu_agent/cuda and the executor over simulated GPUs: every seed is another order of the devices.
// BUCKETD_FULL=1 runs 5,000 seeds instead of 20.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "gpu_agent/cuda/cuda_copier.h"
#include "gpu_agent/pack/segments.h"
#include "tests/gpu_agent/cudasim/gpus.h"

namespace bucketd::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int kRanks = 2;
constexpr absl::Duration kTimeout = absl::Seconds(30);

std::vector<BucketSpec> Buckets(int lanes) { return BucketsOf(kRanks, lanes); }

// Ranks as threads, each with its executor, from its opening to its close.
void OnGpus(sim::World& world, int lanes, const std::function<void(GpuRank&, int)>& run,
            absl::Duration timeout = kTimeout) {
  const Program program = ProgramOf(Buckets(lanes));
  Meeting meeting(world, kRanks, lanes);
  OnRanks(kRanks, [&](int rank) {
    GpuRank mine(world, meeting, program, rank, lanes, timeout);
    run(mine, rank);
  });
  world.Drain();
}

TEST(CudasimTest, AStepGivesItsBytesUnderEverySeed) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1, [&](GpuRank& rank, int) {
      ASSERT_TRUE(rank.opened().ok()) << rank.opened();
      EXPECT_EQ(rank.Step(), "") << "seed " << seed;
      EXPECT_EQ(rank.Step(true), "") << "seed " << seed;
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
    EXPECT_EQ(world.allocations(), 0u) << "seed " << seed;
  }
}

// Two communicators on one GPU: without one order of their kernels, seeds deadlock.
TEST(CudasimTest, LanesDoNotWaitForEachOther) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks, .resident = 1});
    OnGpus(
        world, 2,
        [&](GpuRank& rank, int) {
          ASSERT_TRUE(rank.opened().ok()) << rank.opened();
          EXPECT_EQ(rank.Step(), "") << "seed " << seed;
        },
        absl::Seconds(10));
    ASSERT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// Whoever closes between a start and its end leaves no copy behind on memory that is gone.
TEST(CudasimTest, AnExecutorThatIsClosedUnderWayFreesNothingInUse) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1, [&](GpuRank& rank, int index) {
      ASSERT_TRUE(rank.opened().ok()) << rank.opened();
      EXPECT_EQ(rank.Step(), "");
      const auto& spec = rank.executor().program().plan.buckets[0];
      BucketData data = MakeData(spec, index, spec.dtype);
      OnGpu in(rank.device(), data.in), out(rank.device(), data.out);
      in.Upload(rank.stream());
      const auto ticket = rank.executor().Start(0, {in.tensors(), {}, rank.stream().Record()});
      if (ticket.ok() && seed % 2 == 0) {
        rank.executor().Wait(*ticket, Phase::kArrived, absl::InfiniteFuture()).IgnoreError();
        rank.executor().Finish(*ticket, out.tensors()).IgnoreError();
      }
      rank.Close();
      EXPECT_EQ(rank.stream().Record()->Wait(absl::InfiniteFuture()), absl::OkStatus());
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// A table goes when its owner does, behind the copies that read it.
TEST(CudasimTest, ATableThatNobodyOwnsOutlivesItsCopies) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = 1});
    CudaDevice device(0, "cuda:0 simulated", world.nccl_api());
    const auto memory = *device.Allocate(4096);
    const auto stream = *device.NewStream("one");
    {
      const auto copier = *CudaCopier::Create(0);
      for (int k = 0; k < 3; ++k) {
        const Segment zeros{nullptr, memory->data(), 4096, Move::kZero};
        const auto tiles = *Cut({&zeros, 1});
        EXPECT_TRUE(copier->Copy(*stream, std::make_shared<const std::vector<Tile>>(tiles)).ok());
      }
    }
    EXPECT_TRUE(stream->Record()->Wait(absl::InfiniteFuture()).ok());
    world.Drain();
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// As of a stream that CUDA does not know: what nothing was copied through serves the next copy.
TEST(CudasimTest, ACopyThatCudaRefusesLeavesItsPinnedMemoryToTheNext) {
  sim::World world({.devices = 1});
  CudaDevice device(0, "cuda:0 simulated", world.nccl_api());
  const auto memory = *device.Allocate(64);
  const auto stream = *device.NewStream("one");
  int nobodys = 0;
  const auto unknown = reinterpret_cast<cudaStream_t>(&nobodys);
  std::vector<std::byte> bytes(64);
  for (int k = 0; k < 3; ++k) {
    CudaStream in(0, unknown, false), out(0, unknown, false);
    EXPECT_FALSE(device.Copy(in, bytes.data(), memory->data(), 64).ok());
    EXPECT_FALSE(device.Copy(out, memory->data(), bytes.data(), 64).ok());
  }
  EXPECT_TRUE(device.Copy(*stream, bytes.data(), memory->data(), 64).ok());
  EXPECT_TRUE(stream->Record()->Wait(absl::InfiniteFuture()).ok());
  EXPECT_EQ(world.allocations(), 2u);
}

TEST(CudasimTest, ARankOpensAContextOnItsOwnGpuOnly) {
  sim::World world({.devices = 3});
  {
    CudaDevice device(2, "cuda:2 simulated", world.nccl_api());
    const auto stream = device.NewStream("alone");
    ASSERT_TRUE(stream.ok());
    const auto memory = device.Allocate(4096);
    const std::vector<std::byte> bytes(4096);
    EXPECT_TRUE(device.Copy(**stream, bytes.data(), (*memory)->data(), 4096).ok());
    const auto first = (*stream)->Record(), second = (*stream)->Record();
    EXPECT_TRUE(second->Wait(absl::InfiniteFuture()).ok());
    EXPECT_TRUE(second->Since(*first).ok());
    std::thread([&device] { device.OnlyLook(); }).join();  // as watchdogs do
  }
  EXPECT_THAT(world.contexts(), UnorderedElementsAre(2));
}

// Whatever was done there would be done on GPU 0, which is the runtime's own where it knows of
// none.
TEST(CudasimTest, AGpuThatGivesNoContextIsNotOpened) {
  constexpr int kTaken = 7;  // contexts are the process's: a GPU that no other test has
  sim::World world({.devices = kTaken + 1, .taken = kTaken});
  const auto opened = CudaDevice::Open(kTaken, world.nccl_api());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable) << opened.status();
  EXPECT_THAT(std::string(opened.status().message()),
              HasSubstr("GPU 7 (cudasim) gives no context"));
  EXPECT_THAT(world.contexts(), IsEmpty());
  EXPECT_EQ(LeaveDevice(kTaken), absl::OkStatus());
  EXPECT_TRUE(CudaDevice::Open(0, world.nccl_api()).ok());
}

// As an agent that gives way: its context goes, with the memory that it takes, and it comes again.
TEST(CudasimTest, AGpuThatIsLeftHasNoContextAndCanBeOpenedAnew) {
  sim::World world({.devices = 3});
  for (int round = 0; round < 2; ++round) {
    {
      CudaDevice device(2, "cuda:2 simulated", world.nccl_api());
      const auto stream = *device.NewStream("alone");
      const auto memory = *device.Allocate(4096);
      const Segment zeros{nullptr, memory->data(), 4096, Move::kZero};
      const auto tiles = *Cut({&zeros, 1});
      EXPECT_TRUE(device.CopyTiles(*stream, std::make_shared<const std::vector<Tile>>(tiles)).ok());
      EXPECT_TRUE(stream->Record()->Wait(absl::InfiniteFuture()).ok());
    }
    EXPECT_THAT(world.contexts(), UnorderedElementsAre(2));
    EXPECT_EQ(LeaveDevice(2), absl::OkStatus());
    EXPECT_THAT(world.contexts(), IsEmpty());
  }
  EXPECT_EQ(LeaveDevice(2), absl::OkStatus());  // nobody is there
  EXPECT_THAT(world.findings(), IsEmpty());
}

TEST(CudasimTest, AGpuThatIsLeftUnderItsMemoryIsFound) {
  sim::World world({.devices = 1});
  CudaDevice device(0, "cuda:0 simulated", world.nccl_api());
  const auto memory = *device.Allocate(64);
  EXPECT_EQ(LeaveDevice(0), absl::OkStatus());
  EXPECT_THAT(world.findings(), ElementsAre(HasSubstr("a context ends under what lives in it")));
}

// While one rank's first launch waits for its peers, another thread ends it.
TEST(CudasimTest, AnAbortEndsALaunchThatConnects) {
  sim::World world({.devices = kRanks});
  std::promise<void> over;
  const std::shared_future<void> ended = over.get_future().share();
  OnGpus(world, 1, [&](GpuRank& rank, int index) {
    ASSERT_TRUE(rank.opened().ok()) << rank.opened();
    if (index == 1) return ended.wait();  // a peer that never launches
    auto step = std::async(std::launch::async, [&] { return rank.Step(); });
    ASSERT_EQ(step.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
    const absl::Time begin = absl::Now();
    rank.executor().Abort("no more");
    EXPECT_THAT(step.get(), HasSubstr("no more"));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
    over.set_value();
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

// Another thread aborts one rank when the ranks have asked their GPUs for the n-th time. Its peer
// hears of it from NCCL, as of one that died, or at its timeout; nothing is freed in use, wherever
// that was.
TEST(CudasimTest, AnAbortAtAnyStepFreesNothingInUse) {
  std::atomic<int> struck = 0;  // in the middle of a step
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    std::promise<void> now;
    world.OnStep(static_cast<int64_t>(20 + seed * 37 % 160), [&] { now.set_value(); });
    const std::shared_future<void> reached = now.get_future().share();
    OnGpus(
        world, 1 + static_cast<int>(seed / 4 % 2),
        [&](GpuRank& rank, int index) {
          if (!rank.opened().ok()) return;
          auto step = std::async(std::launch::async, [&] { return rank.Step(seed % 4 < 2); });
          const auto is_over = [](const auto& future, int milliseconds) {
            return future.wait_for(std::chrono::milliseconds(milliseconds)) ==
                   std::future_status::ready;
          };
          if (index == static_cast<int>(seed % kRanks)) {
            while (!is_over(reached, 1) && !is_over(step, 0)) continue;
            if (is_over(reached, 0)) rank.executor().Abort("no more");
            if (seed % 8 != 3) world.KillRank(index, true);
          }
          if (step.get().find("no more") != std::string::npos) ++struck;
          rank.Close();
        },
        absl::Seconds(1));
    ASSERT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
  EXPECT_GT(struck, static_cast<int>(Seeds() / 4));  // a step ends after some 170 of these
}

TEST(CudasimTest, ARankWhosePeerDiesIsToldAndFreesNothingInUse) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1, [&](GpuRank& rank, int index) {
      ASSERT_TRUE(rank.opened().ok()) << rank.opened();
      EXPECT_EQ(rank.Step(), "");
      if (index == 1) return world.KillRank(1, true);
      EXPECT_THAT(rank.Step(), HasSubstr("remote error"));
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// Planted faults, which the simulator is for.

TEST(CudasimTest, AMissingEventIsARace) {
  sim::World world({.devices = 1});
  CudaDevice device(0, "cuda:0 simulated", world.nccl_api());
  const auto memory = *device.Allocate(64);
  const auto one = *device.NewStream("one"), other = *device.NewStream("other");
  const std::vector<std::byte> bytes(64);
  ASSERT_TRUE(device.Copy(*one, bytes.data(), memory->data(), 64).ok());
  ASSERT_TRUE(device.Copy(*other, bytes.data(), memory->data(), 64).ok());
  world.Drain();
  EXPECT_THAT(world.findings(), ElementsAre(HasSubstr("a race: nothing orders a copy before")));
  EXPECT_TRUE(one->Record()->Wait(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(other->Record()->Wait(absl::InfiniteFuture()).ok());
}

TEST(CudasimTest, AnEventOrdersTwoStreams) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = 1});
    CudaDevice device(0, "cuda:0 simulated", world.nccl_api());
    const auto memory = *device.Allocate(64);
    const auto one = *device.NewStream("one"), other = *device.NewStream("other");
    const std::vector<std::byte> bytes(64);
    ASSERT_TRUE(device.Copy(*one, bytes.data(), memory->data(), 64).ok());
    other->After(one->Record());
    ASSERT_TRUE(device.Copy(*other, bytes.data(), memory->data(), 64).ok());
    EXPECT_TRUE(other->Record()->Wait(absl::InfiniteFuture()).ok());
    EXPECT_THAT(world.findings(), IsEmpty());
  }
}

TEST(CudasimTest, AFreeBeforeTheJoinIsFound) {
  sim::World world({.devices = 1});
  CudaDevice device(0, "cuda:0 simulated", world.nccl_api());
  auto memory = *device.Allocate(64);
  const auto stream = *device.NewStream("one");
  const std::vector<std::byte> bytes(64);
  ASSERT_TRUE(device.Copy(*stream, bytes.data(), memory->data(), 64).ok());
  memory = nullptr;
  world.Drain();
  EXPECT_THAT(world.findings(), ElementsAre(HasSubstr("uses memory after its free")));
  EXPECT_TRUE(stream->Record()->Wait(absl::InfiniteFuture()).ok());
}

TEST(CudasimDeathTest, TheHostCannotReadDeviceMemory) {
  sim::World world({.devices = 1});
  CudaDevice device(0, "cuda:0 simulated", world.nccl_api());
  const auto memory = *device.Allocate(64);
  EXPECT_DEATH({ *const_cast<volatile std::byte*>(memory->data()) = std::byte{1}; }, "");
}

// Collectives in an order that differs between ranks, each behind the one before.
std::vector<std::string> InOrders(const std::vector<std::vector<int>>& order_of_lanes) {
  sim::World world({.devices = kRanks});
  Meeting meeting(world, kRanks, 2);
  OnRanks(kRanks, [&](int rank) {
    CudaDevice device(rank, "cuda simulated", world.nccl_api());
    const auto memory = *device.Allocate(8192);
    const auto stream = *device.NewStream("wire");
    const auto first = *meeting.Join(device, rank, 0, kTimeout);
    const auto second = *meeting.Join(device, rank, 1, kTimeout);
    // The first launch of each connects, and that takes all ranks.
    for (const int lane : {0, 1}) {
      const Collective none{CollectiveKind::kAllReduce,
                            memory->data(),
                            memory->data(),
                            8,
                            DType::kF32,
                            ReduceOp::kSum};
      EXPECT_TRUE((lane == 0 ? first : second)->Launch(*stream, {&none, 1}).ok());
    }
    EXPECT_TRUE(stream->Record()->Wait(absl::InfiniteFuture()).ok());
    for (const int lane : order_of_lanes[static_cast<size_t>(rank)]) {
      std::byte* at = memory->data() + 4096 * lane;
      const Collective sum{CollectiveKind::kAllReduce, at, at, 8, DType::kF32, ReduceOp::kSum};
      EXPECT_TRUE((lane == 0 ? first : second)->Launch(*stream, {&sum, 1}).ok());
    }
    const auto end = stream->Record();
    if (!end->Wait(absl::Now() + absl::Seconds(1)).ok()) {
      first->Abort("stuck");
      second->Abort("stuck");
      world.Drain();
      while (!end->done()) continue;
    }
  });
  return world.findings();
}

TEST(CudasimTest, LanesInAnotherOrderOnOneRankAreADeadlock) {
  EXPECT_THAT(InOrders({{0, 1}, {0, 1}}), IsEmpty());
  EXPECT_THAT(InOrders({{0, 1}, {1, 0}}), ElementsAre(HasSubstr("a deadlock")));
}

}  // namespace
}  // namespace bucketd::agent
