// How an executor ends where NCCL waits: ncclCommAbort for kernels, which may be behind those of
// another communicator, and every end of a communicator for the graphs that hold it.
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/steps.h"

namespace bucketd::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(15);

// Two lanes, whose kernels are one behind the other: that of the second is behind one of the first,
// which waits for a peer that is gone.
TEST(EndsTest, AnErrorEndsLanesThatWaitForEachOther) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks, .patience = kPatience});
    OnGpus(world, 2, [&](Trainer& mine, int rank) {
      EXPECT_EQ(mine.Step(), "");
      if (rank == 1) return world.KillRank(1, true);
      const absl::Time begin = absl::Now();
      std::string error;
      std::vector<std::unique_ptr<Trainer::StepData>> runs;
      while (error.empty()) {
        runs.push_back(mine.Prepare());
        error = mine.Enqueue(*runs.back(), InOrder(), Fault::kNone);
      }
      EXPECT_THAT(error, HasSubstr("remote error"));
      EXPECT_EQ(mine.Close(), 1) << "seed " << seed;
      EXPECT_LT(absl::Now() - begin, absl::Seconds(10)) << "seed " << seed;
      mine.Drain();
    });
    ASSERT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
    EXPECT_EQ(Left(world), 0u) << "seed " << seed;
  }
}

// The same, with a peer that lives and does not come.
TEST(EndsTest, ACloseOrAnAbortEndsLanesThatWaitForEachOther) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks, .patience = kPatience});
    std::promise<void> over;
    const std::shared_future<void> closed = over.get_future().share();
    OnGpus(world, 2, [&](Trainer& mine, int rank) {
      EXPECT_EQ(mine.Step(), "");
      if (rank == 1) return closed.wait();
      const auto run = mine.Prepare();
      EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
      const absl::Time begin = absl::Now();
      if (seed % 2 == 0) bucket_executor_abort(mine.executor(), "no more");
      EXPECT_EQ(mine.Close(), 1) << "seed " << seed;
      EXPECT_LT(absl::Now() - begin, absl::Seconds(10)) << "seed " << seed;
      over.set_value();
      mine.Drain();
    });
    ASSERT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// A collective of the trainer's own hangs, for whatever reason, and buckets are behind it: NCCL
// does not return from their end, and every call of ours does.
TEST(EndsTest, AnAbortBehindAStreamThatHangsHoldsNobody) {
  sim::World world({.devices = kRanks});
  OnGpus(
      world, 2,
      [&](Trainer& mine, int rank) {
        EXPECT_EQ(mine.Step(), "");
        const auto run = mine.Prepare();
        CudaStream stream(rank, mine.stream(), false);
        auto gate = stream.Shut();
        ASSERT_TRUE(gate.ok()) << gate.status();
        EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
        const absl::Time begin = absl::Now();
        bucket_executor_abort(mine.executor(), "no more");
        EXPECT_THAT(mine.Enqueue(*run, InOrder(), Fault::kNone), HasSubstr("no more"));
        EXPECT_LT(absl::Now() - begin, absl::Seconds(3));
        EXPECT_EQ(mine.Close(), 0);
        EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
        *gate = nullptr;
        mine.Drain();
      },
      2);
  EXPECT_THAT(world.findings(), IsEmpty());
  EXPECT_EQ(Left(world), 0u);
}

// What an interpreter does at its exit where a graph is a global. The communicators end when the
// graph does, and nobody is held until then.
TEST(EndsTest, ACloseBeforeItsGraphIsDestroyedHoldsNobody) {
  for (const bool fails : {false, true}) {
    sim::World world({.devices = kRanks, .patience = kPatience});
    OnGpus(
        world, 2,
        [&](Trainer& mine, int) {
          const auto run = mine.Prepare();
          world.BeginCapture(mine.stream());
          EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
          sim::SimGraph* graph = world.EndCapture(mine.stream());
          world.Replay(*graph, mine.stream());
          EXPECT_EQ(mine.Check(*run), "");
          const absl::Time begin = absl::Now();
          if (fails) {
            bucket_executor_abort(mine.executor(), "no more");
            EXPECT_THAT(mine.Step(), HasSubstr("no more"));
          }
          EXPECT_LT(absl::Now() - begin, absl::Seconds(3));
          EXPECT_EQ(mine.Close(), 0);
          EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
          world.Destroy(*graph);
          mine.Drain();
        },
        2);
    EXPECT_THAT(world.findings(), IsEmpty());
    EXPECT_EQ(Left(world), 0u);
  }
}

// Python closes executors when they are collected, and at its exit, also under a replay. What that
// gives is undefined, but nothing that it reads has been freed.
TEST(EndsTest, AReplayBehindACloseOfItsExecutorReadsNothingThatWasFreed) {
  for (uint64_t seed = 1; seed <= Seeds() / 10; ++seed) {
    sim::World world({.seed = seed, .devices = kRanks, .patience = kPatience});
    OnGpus(
        world, 1,
        [&](Trainer& mine, int) {
          const auto run = mine.Prepare();
          world.BeginCapture(mine.stream());
          EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
          sim::SimGraph* graph = world.EndCapture(mine.stream());
          EXPECT_EQ(mine.Close(), 0);
          world.Replay(*graph, mine.stream());
          mine.Drain();
          world.Destroy(*graph);
        },
        2);
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
    EXPECT_EQ(Left(world), 0u);
  }
}

}  // namespace
}  // namespace bucketd::agent
