// Ranks whose processes and threads are used up, as in a container with a limit: nobody is ended by
// it, and nothing is freed that NCCL has not ended.
#include <cstdint>
#include <memory>

#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/steps.h"
#include "tests/gpu_agent/few_threads.h"
#include "tests/gpu_agent/heard_records.h"

namespace bucketd::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ThreadsTest, ARankThatCannotSplitIsToldWhatToRaiseAndMayTryAgain) {
  sim::World world({.devices = kRanks});
  const Parents parents(1);
  OnRanks(kRanks, [&](int rank) {
    const auto in_vain = [&](const bucket_executor_options& options, auto&) {
      if (rank == 1) return;
      const FewThreads none(0);
      const absl::Status refused = OpenExecutor(options, Gpus).status();
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("rank 0 of 2"), HasSubstr("ulimit -u")));
    };
    Trainer mine(parents, rank, {.change = in_vain});
    ASSERT_TRUE(mine.opened().ok()) << mine.opened();
    EXPECT_EQ(mine.Step(), "");
  });
  world.Drain();
  EXPECT_THAT(world.findings(), IsEmpty());
  EXPECT_EQ(Left(world), 0u);
}

TEST(ThreadsTest, ATrainerWithoutAThreadForRecordsGoesOnAndTheyAreCountedAsLost) {
  const size_t buckets = Buckets(1).size();
  HeardRecords heard;
  sim::World world({.devices = kRanks});
  OnGpus(world, 1, [&](Trainer& mine, int) {
    char* error = nullptr;
    bucket_telemetry* telemetry = bucket_telemetry_open(heard.socket().c_str(), "job", &error);
    ASSERT_NE(telemetry, nullptr) << error;
    mine.Report(*telemetry);
    {
      const FewThreads none(0);
      EXPECT_EQ(mine.Step(), "");
    }
    EXPECT_EQ(bucket_telemetry_dropped(telemetry), buckets);
    EXPECT_EQ(mine.Step(), "");
    for (const RunRecord& record : heard.Wait(buckets * static_cast<size_t>(kRanks))) {
      EXPECT_EQ(record.step, 1u);
    }
    EXPECT_EQ(bucket_telemetry_dropped(telemetry), buckets);
    EXPECT_EQ(mine.Close(), 1);
    bucket_telemetry_close(telemetry);
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

TEST(ThreadsTest, WhatNobodyCanEndIsSaidInTimeAndKeepsItsMemory) {
  sim::World world({.devices = kRanks});
  OnGpus(world, 2, [&](Trainer& mine, int rank) {
    EXPECT_EQ(mine.Step(), "");
    if (rank == 1) return;
    const absl::Time begin = absl::Now();
    {
      const FewThreads none(0);
      bucket_executor_abort(mine.executor(), "no more");
    }
    EXPECT_EQ(mine.Close(), 0);
    EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
    EXPECT_THAT(mine.ended(), HasSubstr("no more"));
  });
  EXPECT_THAT(world.findings(), IsEmpty());
  EXPECT_EQ(Left(world, 2), 2u);
}

}  // namespace
}  // namespace bucketd::agent
