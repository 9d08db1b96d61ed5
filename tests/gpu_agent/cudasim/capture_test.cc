// Buckets captured into graphs, and replayed.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/steps.h"
#include "tests/gpu_agent/heard_records.h"

namespace bucketd::agent {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The trainer's buckets are told of from now on.
bucket_telemetry* Reported(Trainer& trainer, const HeardRecords& heard) {
  char* error = nullptr;
  bucket_telemetry* telemetry = bucket_telemetry_open(heard.socket().c_str(), "job", &error);
  EXPECT_NE(telemetry, nullptr) << error;
  trainer.Report(*telemetry);
  return telemetry;
}

// A step that is captured, after one that is not, with tensors at other addresses; then replayed
// with other steps beside it.
TEST(CaptureTest, AReplayedStepGivesItsBytesUnderEverySeed) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 1 + static_cast<int>(seed % 2), [&](Trainer& mine, int) {
      if (seed % 3 != 0) {
        EXPECT_EQ(mine.Step(), "") << "seed " << seed;
      }
      const auto run = mine.Prepare();
      world.BeginCapture(mine.stream());
      EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "") << "seed " << seed;
      sim::SimGraph* graph = world.EndCapture(mine.stream());
      for (int replay = 0; replay < 3; ++replay) {
        mine.Upload(*run);
        world.Replay(*graph, mine.stream());
        EXPECT_EQ(mine.Check(*run), "") << "seed " << seed << ", replay " << replay;
        if (replay == 1) {
          EXPECT_EQ(mine.Step(), "") << "seed " << seed;
        }
      }
      world.Destroy(*graph);
      EXPECT_EQ(mine.Close(), 1);
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

// A plan's tables for one graph are not those of the next one, nor of the steps between.
TEST(CaptureTest, SeveralGraphsAndStepsKeepTheirTables) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    OnGpus(world, 2, [&](Trainer& mine, int) {
      std::vector<std::unique_ptr<Trainer::StepData>> runs;
      std::vector<sim::SimGraph*> graphs;
      for (int k = 0; k < 2; ++k) {
        runs.push_back(mine.Prepare());
        world.BeginCapture(mine.stream());
        EXPECT_EQ(mine.Enqueue(*runs.back(), {3, 1, 0, 2}, Fault::kNone), "");
        graphs.push_back(world.EndCapture(mine.stream()));
      }
      for (int k = 0; k < 6; ++k) EXPECT_EQ(mine.Step(), "") << "seed " << seed;
      for (size_t k = 0; k < 4; ++k) {
        mine.Upload(*runs[k % 2]);
        world.Replay(*graphs[k % 2], mine.stream());
        EXPECT_EQ(mine.Check(*runs[k % 2]), "") << "seed " << seed;
      }
      for (sim::SimGraph* graph : graphs) world.Destroy(*graph);
      EXPECT_EQ(mine.Close(), 1);
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  }
}

std::string StartOf(Trainer& mine, Trainer::StepData& run, const std::vector<int32_t>& some) {
  return mine.Enqueue(run, some, Fault::kNone);
}

// On all ranks alike, and before anything of the bucket is enqueued.
TEST(CaptureTest, ACaptureInTheMidstOfARunIsRefused) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int) {
    const auto run = mine.Prepare();
    EXPECT_EQ(StartOf(mine, *run, {0, 1}), "");
    world.BeginCapture(mine.stream());
    EXPECT_THAT(
        StartOf(mine, *run, {2, 3}),
        AllOf(HasSubstr("a capture into a graph began in the midst of a run: 0 buckets are"),
              HasSubstr("with its bucket 2 of 4")));
    world.Destroy(*world.EndCapture(mine.stream()));
    EXPECT_EQ(StartOf(mine, *run, {2, 3}), "");
    EXPECT_EQ(mine.Close(), 1);
    mine.Drain();
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

TEST(CaptureTest, WhatIsCapturedIsJoinedThereAndReportedToNobody) {
  HeardRecords heard;
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int) {
    bucket_telemetry* telemetry = Reported(mine, heard);
    const auto run = mine.Prepare();
    std::vector<int64_t> tickets;
    world.BeginCapture(mine.stream());
    EXPECT_EQ(mine.Start(*run, InOrder(), tickets), "");
    char* error = nullptr;
    EXPECT_EQ(bucket_executor_wait(mine.executor(), tickets[0], 1, &error), 0);
    EXPECT_THAT(Trainer::Taken(error), HasSubstr("is captured into a graph: join"));
    EXPECT_EQ(bucket_executor_join(mine.executor(), tickets[0], mine.other_stream(), &error), 0);
    EXPECT_THAT(Trainer::Taken(error), HasSubstr("joined on two sides of a capture"));
    EXPECT_EQ(mine.Join(tickets), "");
    world.Destroy(*world.EndCapture(mine.stream()));
    EXPECT_EQ(mine.Close(), 1);
    bucket_telemetry_close(telemetry);
    mine.Drain();
  });
  EXPECT_THAT(heard.End(), IsEmpty());
  EXPECT_THAT(world.findings(), IsEmpty());
}

// Planted: a bucket that nobody joins leaves a stream of the executor's in the capture.
TEST(CaptureTest, ABucketThatIsNotJoinedIsFound) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int) {
    const auto run = mine.Prepare();
    std::vector<int64_t> tickets;
    world.BeginCapture(mine.stream());
    EXPECT_EQ(mine.Start(*run, InOrder(), tickets), "");
    world.Destroy(*world.EndCapture(mine.stream()));
    EXPECT_EQ(mine.Close(), 1);
    mine.Drain();
  });
  EXPECT_THAT(world.findings(), Contains(HasSubstr("before a stream in it was joined")));
}

// The executor's watchdog, every quarter of its timeout, and what notes the times of joined runs,
// while another stream of this GPU's is captured.
TEST(CaptureTest, ThreadsThatLookDisturbNoCapture) {
  HeardRecords heard;
  sim::World world({.devices = kRanks});
  OnGpus(
      world, 1,
      [&](Trainer& mine, int) {
        bucket_telemetry* telemetry = Reported(mine, heard);
        EXPECT_EQ(mine.Step(), "");
        const auto run = mine.Prepare();
        world.BeginCapture(mine.other_stream());
        EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
        absl::SleepFor(absl::Milliseconds(600));
        EXPECT_FALSE(heard.Wait(1).empty());
        world.Destroy(*world.EndCapture(mine.other_stream()));
        EXPECT_EQ(mine.Close(), 1);
        bucket_telemetry_close(telemetry);
        mine.Drain();
      },
      2);
  EXPECT_THAT(world.findings(), IsEmpty());
}

// As where a collector of garbage ends it while the thread, or another one, captures.
TEST(CaptureTest, ACloseDisturbsNoCaptureBesideIt) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int) {
    EXPECT_EQ(mine.Step(), "");
    const auto run = mine.Prepare();
    EXPECT_EQ(mine.Enqueue(*run, InOrder(), Fault::kNone), "");
    world.BeginCapture(mine.other_stream());
    EXPECT_EQ(mine.Close(), 1);
    world.Destroy(*world.EndCapture(mine.other_stream()));
    mine.Drain();
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

TEST(CaptureTest, WhatACaptureForbidsToAskHasNotEnded) {
  sim::World world({.devices = kRanks});
  const auto stream = *CudaStream::Start(0);
  world.BeginCapture(stream->get());
  const auto event = stream->Record();
  EXPECT_FALSE(event->done());
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream->Drain(absl::Now() + absl::Milliseconds(5))));
  world.Destroy(*world.EndCapture(stream->get()));
  EXPECT_TRUE(stream->Drain(absl::Now() + absl::Seconds(5)).ok());
  EXPECT_THAT(world.findings(), Each(HasSubstr("in a capture")));
}

}  // namespace
}  // namespace bucketd::agent
