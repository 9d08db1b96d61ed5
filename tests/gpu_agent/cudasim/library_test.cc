// The C interface on simulated GPUs, as a trainer uses it: buckets start behind what is on the
// trainer's stream and are joined by it, and the host waits for nothing.
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

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(LibraryOnGpusTest, StepsOnATrainersStreamGiveTheirBytesUnderEverySeed) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1 + static_cast<int>(seed % 2), [&](Trainer& mine, int) {
      for (int step = 0; step < 3; ++step) EXPECT_EQ(mine.Step(), "") << "seed " << seed;
      char* error = nullptr;
      EXPECT_EQ(bucket_executor_health(mine.executor(), &error), 1) << error;
      EXPECT_EQ(mine.Close(), 1);
      EXPECT_EQ(mine.ended(), "");
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
    EXPECT_EQ(world.allocations(), 0u) << "seed " << seed;
  }
}

// Else a trainer's copies would run on another stream than its plan's prediction is of.
TEST(LibraryOnGpusTest, CopiesRunOnTheStreamThatThePlanSays) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int) {
    std::vector<CopyStream> copies;
    for (const BucketSpec& spec : mine.executor()->executor->program().plan.buckets) {
      copies.push_back(spec.copies);
    }
    EXPECT_THAT(copies, ElementsAre(CopyStream::kCompute, CopyStream::kComm, CopyStream::kCompute,
                                    CopyStream::kComm));
  });
}

// The host runs ahead, and tensors have other addresses in each step: tables of copies come and go
// while copies are under way.
TEST(LibraryOnGpusTest, StepsAreEnqueuedOneBehindTheOther) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1, [&](Trainer& mine, int) {
      std::vector<std::unique_ptr<Trainer::StepData>> runs;
      for (int step = 0; step < 3; ++step) {
        runs.push_back(mine.Prepare());
        EXPECT_EQ(mine.Enqueue(*runs.back(), InOrder(), Fault::kNone), "");
      }
      EXPECT_EQ(mine.Step(), "");
      EXPECT_EQ(mine.Close(), 1);
      mine.Drain();
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// Tensors that come back at the addresses of one of the last steps want no table, and events that
// are over mark what comes later.
TEST(LibraryOnGpusTest, AStepThatHasBeenBeforeCostsLaunchesAlone) {
  constexpr int kSteps = 40;
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int rank) {
    std::vector<std::unique_ptr<Trainer::StepData>> sets;
    for (int k = 0; k < 3; ++k) sets.push_back(mine.Prepare());
    int tables = 0;
    for (size_t step = 0; step < kSteps; ++step) {
      if (step == sets.size()) tables = world.tables_made(rank);
      Trainer::StepData& run = *sets[step % sets.size()];
      mine.Upload(run);
      EXPECT_EQ(mine.Enqueue(run, InOrder(), Fault::kNone), "");
      EXPECT_EQ(mine.Check(run), "");
    }
    EXPECT_EQ(world.tables_made(rank), tables);
    EXPECT_LT(world.events_made(rank), 4 * kSteps);  // less than one a bucket
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

// A trainer's compute is of the default priority, 0.
TEST(LibraryOnGpusTest, BucketsGoBeforeComputeThatWaitsForRoom) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 2, [&](Trainer& mine, int) { EXPECT_EQ(mine.Step(), ""); });
  EXPECT_THAT(world.priorities(), UnorderedElementsAre(0, -5));
}

TEST(LibraryOnGpusTest, ARankThatStartsInAnotherOrderLaunchesInThePlans) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks, .resident = 1});
    OnGpus(world, 2, [&](Trainer& mine, int rank) {
      const std::vector<int32_t> order =
          rank == 0 ? std::vector{0, 1, 2, 3} : std::vector{3, 1, 0, 2};
      EXPECT_EQ(mine.Step(order), "") << "seed " << seed;
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

TEST(LibraryOnGpusTest, ADeadPeerIsAnErrorAndNothingIsFreedInUse) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    const absl::Time begin = absl::Now();
    OnGpus(world, 1, [&](Trainer& mine, int rank) {
      EXPECT_EQ(mine.Step(), "");
      if (rank == 1) return world.KillRank(1, true);
      std::string error;
      // Joins that came before the error are of results that nobody may use.
      std::vector<std::unique_ptr<Trainer::StepData>> runs;
      while (error.empty()) {
        runs.push_back(mine.Prepare());
        error = mine.Enqueue(*runs.back(), InOrder(), Fault::kNone);
      }
      EXPECT_THAT(error, HasSubstr("remote error"));
      EXPECT_EQ(mine.Close(), 1);
      mine.Drain();
    });
    EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// Nothing has run yet when the last bucket is joined, and nobody starts another one: what comes out
// is not what was to come out, without any call that says so.
TEST(LibraryOnGpusTest, AnErrorBehindTheLastJoinIsSaid) {
  for (uint64_t seed = 1; seed <= Seeds() / 5; ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    std::promise<void> joined;
    OnGpus(
        world, 1 + static_cast<int>(seed % 2),
        [&](Trainer& mine, int rank) {
          EXPECT_EQ(mine.Step(), "");
          if (rank == 1) {
            joined.get_future().wait();
            return world.KillRank(1, true);
          }
          const auto run = mine.Prepare();
          EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
          joined.set_value();
          mine.Drain();
          char* error = nullptr;
          EXPECT_EQ(bucket_executor_health(mine.executor(), &error), 0) << "seed " << seed;
          EXPECT_THAT(Trainer::Taken(error), HasSubstr("remote error"));
          EXPECT_EQ(mine.Close(), 1);
          EXPECT_THAT(mine.ended(), HasSubstr("remote error"));
        },
        2);
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

TEST(LibraryOnGpusTest, AnAbortOrACloseUnderWayFreesNothingInUse) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1, [&](Trainer& mine, int) {
      EXPECT_EQ(mine.Step(), "");
      const auto run = mine.Prepare();
      mine.Enqueue(*run, InOrder(), Fault::kNone);
      if (seed % 2 == 0) bucket_executor_abort(mine.executor(), "no more");
      EXPECT_EQ(mine.Close(), 1);
      mine.Drain();
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// The trainer's stream hangs, and so do buckets behind it, whatever becomes of NCCL: a close waits
// for its limit, says that memory is in use, and frees none of it. It is no error that the process
// would have to end by: the caller wanted it.
TEST(LibraryOnGpusTest, WhatHangsAtACloseIsSaidInTimeAndKeepsItsMemory) {
  sim::World world({.devices = kRanks});
  const Parents parents(1);
  OnRanks(kRanks, [&](int rank) {
    Trainer mine(parents, rank, {.change = [](bucket_executor_options& options, auto&) {
                   options.ends_process = 1;
                 }});
    ASSERT_TRUE(mine.opened().ok()) << mine.opened();
    EXPECT_EQ(mine.Step(), "");
    const auto run = mine.Prepare();
    CudaStream stream(rank, mine.stream(), false);
    auto gate = stream.Shut();
    ASSERT_TRUE(gate.ok()) << gate.status();
    EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
    const absl::Time begin = absl::Now();
    EXPECT_EQ(mine.Close(), 0);
    EXPECT_GT(absl::Now() - begin, absl::Seconds(9));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(25));
    EXPECT_THAT(mine.ended(), HasSubstr("was closed; what 4 buckets have written that had been "
                                        "joined is undefined"));
    *gate = nullptr;
    mine.Drain();
  });
  world.Drain();
  EXPECT_THAT(world.findings(), IsEmpty());
}

// Planted faults of trainers.

std::vector<std::string> With(Fault fault) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int) { mine.Step({0, 1, 2, 3}, fault); });
  return world.findings();
}

TEST(LibraryOnGpusTest, AStartBehindAnotherStreamIsARace) {
  EXPECT_THAT(With(Fault::kNoEvent), Contains(HasSubstr("a race: nothing orders a copy")));
}

TEST(LibraryOnGpusTest, ResultsThatAreReadBeforeTheJoinAreARace) {
  EXPECT_THAT(With(Fault::kReadBeforeJoin), Contains(HasSubstr("a race: nothing orders")));
}

TEST(LibraryOnGpusTest, ResultsThatAreFreedBeforeTheJoinAreFound) {
  EXPECT_THAT(With(Fault::kFreeBeforeJoin), Contains(HasSubstr("after its free")));
}

}  // namespace
}  // namespace bucketd::agent
