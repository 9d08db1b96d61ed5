// What an executor on GPUs refuses, before anything of a bucket moves: by which rank, and what to
// do.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/steps.h"

extern "C" const bucketd::agent::GpuModule* bucketd_cuda_module_v1();

namespace bucketd::agent {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// What each rank is told; nothing was launched, and nobody waited for a timeout.
std::vector<std::string> Told(const sim::Options& options,
                              const std::function<Opening(int rank)>& opening) {
  sim::World world(options);
  const Parents parents(1);
  std::vector<std::string> told(static_cast<size_t>(kRanks));
  const absl::Time begin = absl::Now();
  OnRanks(kRanks, [&](int rank) {
    const Trainer mine(parents, rank, opening(rank));
    told[static_cast<size_t>(rank)] = mine.opened().ToString();
  });
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  EXPECT_THAT(world.findings(), IsEmpty());
  EXPECT_EQ(world.launches(), 0);
  EXPECT_EQ(Left(world), 0u);  // a split that was given up is aborted by its own thread
  return told;
}

constexpr char kRestart[] = "start all of them anew, with one installation";

TEST(RefusedOnGpusTest, RanksOfDifferentPlans) {
  const auto told = Told({.devices = kRanks}, [](int rank) {
    Opening opening;
    if (rank == 1) opening.order = {1, 0, 2, 3};
    return opening;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(told[static_cast<size_t>(rank)],
                AllOf(HasSubstr("rank " + std::to_string(rank) + " of 2 of dp, plan "),
                      HasSubstr("only 1 of 2 ranks hold this plan"), HasSubstr(kRestart)));
  }
  EXPECT_NE(told[0].substr(0, 60), told[1].substr(0, 60));
}

TEST(RefusedOnGpusTest, RanksOfDifferentEpochs) {
  const auto told = Told({.devices = kRanks}, [](int rank) {
    return Opening{.change = [rank](auto& options, auto&) {
      options.epoch = static_cast<uint64_t>(rank) + 7;
    }};
  });
  EXPECT_THAT(told, ElementsAre(HasSubstr("of epoch 7: only 1 of 2"),
                                HasSubstr("of epoch 8: only 1 of 2")));
}

TEST(RefusedOnGpusTest, RanksOfDifferentNccls) {
  const auto told =
      Told({.devices = kRanks, .nccl_version = [](int gpu) { return gpu == 0 ? 22809 : 23004; }},
           [](int) { return Opening(); });
  EXPECT_THAT(
      told,
      ElementsAre(
          AllOf(HasSubstr("rank 0 of 2"), HasSubstr("and run NCCL 2.28.9"), HasSubstr(kRestart)),
          AllOf(HasSubstr("rank 1 of 2"), HasSubstr("and run NCCL 2.30.4"), HasSubstr(kRestart))));
}

TEST(RefusedOnGpusTest, APlanForAnotherWorldSize) {
  const auto told = Told({.devices = kRanks}, [](int) {
    return Opening{.change = [](auto& options, auto& channels) {
      channels[0].size = 4;
      options.arena_bytes = bucket_executor_plan_bytes(&options, nullptr);  // none of it is used
    }};
  });
  EXPECT_THAT(told, Each(AllOf(HasSubstr("of 4 of dp"), HasSubstr("the plan is of 4 ranks"),
                               HasSubstr("the trainer's communicator of 2; plan anew"))));
}

TEST(RefusedOnGpusTest, AnNcclThatIsNotTheTrainers) {
  const auto told = Told({.devices = kRanks, .foreign_nccl = true}, [](int) { return Opening(); });
  EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr("rank 0 of 2"), HasSubstr("not the NCCL that the"),
                                      HasSubstr("BUCKETD_NCCL_LIB")),
                                HasSubstr("rank 1 of 2")));
}

TEST(RefusedOnGpusTest, AnArenaThatIsTooSmallOrNone) {
  const auto small = Told({.devices = kRanks}, [](int) {
    return Opening{.change = [](auto& options, auto&) { options.arena_bytes = 4096; }};
  });
  const auto none = Told({.devices = kRanks}, [](int) {
    return Opening{.change = [](auto& options, auto&) { options.arena = nullptr; }};
  });
  for (size_t rank = 0; rank < small.size(); ++rank) {
    const auto says = AllOf(HasSubstr("rank " + std::to_string(rank) + " of 2 of dp, plan "),
                            HasSubstr("bytes of GPU " + std::to_string(rank)),
                            HasSubstr("a plan with a lower memory_limit"));
    EXPECT_THAT(small[rank], AllOf(says, HasSubstr("the arena has 4096 bytes; ")));
    EXPECT_THAT(none[rank], AllOf(says, HasSubstr("there is no arena; ")));
  }
}

// The other rank does not open beside it, to hang at its first bucket.
TEST(RefusedOnGpusTest, AnArenaThatOneRankLacks) {
  const auto told = Told({.devices = kRanks}, [](int rank) {
    return Opening{.timeout = 0.5, .change = [rank](auto& options, auto&) {
                     if (rank == 1) options.arena_bytes = 4096;
                   }};
  });
  EXPECT_THAT(told[0], HasSubstr("DEADLINE_EXCEEDED: rank 0 of 2 of dp"));
  EXPECT_THAT(told[1], HasSubstr("rank 1 of 2 of dp"));
}

// Where the executor's memory is its own: one rank has too little, and its peer hears at once.
TEST(RefusedOnGpusTest, NoMemoryOnOneGpu) {
  sim::World world({.devices = kRanks,
                    .memory = [](int gpu) { return gpu == 1 ? size_t{4096} : size_t{1} << 30; }});
  const Program program = ProgramOf(Buckets(1));
  Meeting meeting(world, kRanks, 1);
  std::vector<std::string> told(static_cast<size_t>(kRanks));
  const absl::Time begin = absl::Now();
  OnRanks(kRanks, [&](int rank) {
    const GpuRank mine(world, meeting, program, rank, 1, absl::Seconds(60));
    told[static_cast<size_t>(rank)] = mine.opened().ToString();
  });
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  EXPECT_THAT(told[1], AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("bytes on cuda:1")));
  EXPECT_THAT(told[0], HasSubstr("rank 1"));
  EXPECT_THAT(world.findings(), IsEmpty());
}

TEST(RefusedOnGpusTest, ADriverThatIsTooOld) {
  const auto told = Told({.devices = kRanks, .driver = 12020}, [](int) {
    return Opening{.gpus = [] {
      const auto count = bucketd_cuda_module_v1()->count();
      return GpuBackend{nullptr, 0, count.status().ToString()};
    }};
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(told[static_cast<size_t>(rank)],
                AllOf(HasSubstr("rank " + std::to_string(rank) + " of 2 of dp, plan "),
                      HasSubstr("the CUDA driver is for 12.2"), HasSubstr("this build wants "),
                      HasSubstr("update the driver")));
  }
}

// What a trainer's rank is told before any of them opens.
std::string Taken(CollectiveKind kind, ReduceOp op, DType dtype, int32_t gpu = 0,
                  const FindGpus& gpus = Gpus) {
  const int64_t counts[] = {8};
  const bucket_spec spec{"b",
                         0,
                         static_cast<int32_t>(kind),
                         static_cast<int32_t>(op),
                         static_cast<int32_t>(dtype),
                         static_cast<int32_t>(BucketMode::kPacked),
                         static_cast<int32_t>(CopyStream::kCompute),
                         1,
                         counts};
  return Takes(gpu, spec, kRanks, gpus).ToString();
}

TEST(RefusedOnGpusTest, WhatNcclDoesNotReduceIsSaid) {
  sim::World world({.devices = kRanks});
  EXPECT_EQ(Taken(CollectiveKind::kAllGather, ReduceOp::kNone, DType::kI16), "OK");
  EXPECT_THAT(Taken(CollectiveKind::kAllReduce, ReduceOp::kSum, DType::kI16),
              HasSubstr("NCCL does not reduce i16"));
  EXPECT_THAT(Taken(CollectiveKind::kReduceScatter, ReduceOp::kAvg, DType::kF8E4M3),
              AllOf(HasSubstr("NCCL has no avg of"), Not(StartsWith("UNAVAILABLE: "))));
  EXPECT_EQ(world.allocations(), 0u);
  EXPECT_EQ(world.events(), 0u);
}

// No bucket's fault: trainers go on without the one, and not without a GPU. A rank that said so
// when it opened would leave the others in their splits.
TEST(RefusedOnGpusTest, WhatKeepsARankFromOpeningIsSaidBefore) {
  const auto taken = [](int32_t gpu, const FindGpus& gpus) {
    return Taken(CollectiveKind::kAllGather, ReduceOp::kNone, DType::kI16, gpu, gpus);
  };
  const sim::World world({.devices = kRanks, .foreign_nccl = true});
  EXPECT_EQ(Usable(0, Gpus), absl::OkStatus());
  EXPECT_THAT(taken(0, Gpus),
              AllOf(StartsWith("UNAVAILABLE: NCCL "), HasSubstr("is not the NCCL that the")));
  EXPECT_THAT(Usable(7, Gpus).ToString(), StartsWith("UNAVAILABLE: GPU 7: there is"));
  const FindGpus none = [] { return GpuBackend{nullptr, 0, "there are 0 GPUs"}; };
  EXPECT_EQ(Usable(0, none).ToString(), "UNAVAILABLE: there are 0 GPUs");
  EXPECT_EQ(taken(0, none), "UNAVAILABLE: there are 0 GPUs");
  static GpuModule old = *Gpus().module;
  old.open = [](int) -> absl::StatusOr<std::unique_ptr<Device>> {
    return absl::FailedPreconditionError("the kernels want 8.0 or newer");
  };
  const FindGpus too_old = [] { return GpuBackend{&old, kRanks, "old GPUs"}; };
  EXPECT_EQ(Usable(0, too_old).ToString(), "UNAVAILABLE: the kernels want 8.0 or newer");
}

// Of hundreds of buckets, each would make a context's streams and a copier for the question.
TEST(RefusedOnGpusTest, ABucketIsAskedForWithoutItsDevice) {
  const sim::World world({.devices = kRanks});
  static GpuModule shut = *Gpus().module;
  shut.open = [](int) -> absl::StatusOr<std::unique_ptr<Device>> {
    return absl::InternalError("the device was opened");
  };
  const FindGpus gpus = [] { return GpuBackend{&shut, kRanks, "GPUs"}; };
  EXPECT_EQ(Taken(CollectiveKind::kAllGather, ReduceOp::kNone, DType::kI16, 0, gpus), "OK");
}

TEST(RefusedOnGpusTest, ARankThatDoesNotOpenIsWaitedForToTheTimeout) {
  sim::World world({.devices = kRanks});
  const Parents parents(1);
  OnRanks(kRanks, [&](int rank) {
    const absl::Time begin = absl::Now();
    if (rank == 1) {
      for (ncclComm_t comm : parents.Join(rank)) Api()->CommAbort(comm);
      return;
    }
    const Trainer mine(parents, rank, {.timeout = 0.5});
    EXPECT_TRUE(absl::IsDeadlineExceeded(mine.opened())) << mine.opened();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  });
  EXPECT_THAT(world.findings(), IsEmpty());
  EXPECT_EQ(Left(world), 0u);
}

}  // namespace
}  // namespace bucketd::agent
