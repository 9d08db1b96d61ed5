// The executor's memory as windows of NCCL's, which NCCL may refuse late: on any of the ranks, and
// with the communicator.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/gpus.h"

namespace bucketd::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kMembers = 3;
constexpr absl::Duration kPatience = absl::Seconds(4);

Program TwoLanes() {
  std::vector<BucketSpec> buckets = {
      Spec(CollectiveKind::kAllGather, BucketMode::kPacked, DType::kF32, kMembers, {100, 7}),
      Spec(CollectiveKind::kReduceScatter, BucketMode::kPacked, DType::kBF16, kMembers,
           {31, 2000})};
  buckets[1].lane = 1;
  return ProgramOf(std::move(buckets));
}

// Peers wait for the rank that does not come, then all of them go on without.
TEST(WindowsTest, ARefusalOnAnyRankLeavesAllRanksWithoutThem) {
  const Program program = TwoLanes();
  for (uint64_t seed = 1; seed <= Seeds(400) / 4; ++seed) {  // each waits for a part of a timeout
    const int refused = static_cast<int>(seed) % kMembers;
    const ncclResult_t why = seed % 2 == 0 ? ncclInternalError : ncclInvalidArgument;
    sim::World world({.seed = seed, .devices = kMembers, .window = [refused, why](int rank) {
                        return rank == refused ? why : ncclSuccess;
                      }});
    Meeting meeting(world, kMembers, 2);
    testing::internal::CaptureStderr();
    OnRanks(kMembers, [&](int rank) {
      const absl::Time begin = absl::Now();
      GpuRank mine(world, meeting, program, rank, 2, kPatience);
      ASSERT_TRUE(mine.opened().ok()) << mine.opened() << ", seed " << seed;
      EXPECT_LT(absl::Now() - begin, kPatience);
      EXPECT_EQ(mine.Step(), "") << "seed " << seed;
      EXPECT_EQ(mine.Step(true), "") << "seed " << seed;
    });
    const std::string said = testing::internal::GetCapturedStderr();
    for (int rank = 0; rank < kMembers; ++rank) {
      EXPECT_THAT(said, HasSubstr(absl::StrCat("3 ranks, rank ", rank, " on cuda:", rank,
                                               " simulated runs without registered memory: ")));
    }
    world.Drain();
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
    EXPECT_EQ(world.allocations(), 0u) << "seed " << seed;
  }
}

// Whoever ends it meanwhile has ended it: nothing begins anew.
TEST(WindowsTest, AnAbortIsNotUndone) {
  sim::World world({.devices = 2});
  Meeting meeting(world, 2, 1);
  OnRanks(2, [&](int rank) {
    CudaDevice device(rank, "cuda simulated", world.nccl_api());
    const auto communicator = *meeting.Join(device, rank, 0, absl::Seconds(30));
    communicator->Abort("no more");
    EXPECT_THAT(communicator->Renew(absl::Now() + absl::Seconds(10)).ToString(),
                HasSubstr("no more"));
    EXPECT_THAT(communicator->health().ToString(), HasSubstr("no more"));
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

// Whoever waits for a peer that does not begin anew waits to its deadline, and stays as it was.
TEST(WindowsTest, APeerThatDoesNotComeEndsANewBeginning) {
  sim::World world({.devices = 2});
  Meeting meeting(world, 2, 1);
  OnRanks(2, [&](int rank) {
    CudaDevice device(rank, "cuda simulated", world.nccl_api());
    const auto communicator = *meeting.Join(device, rank, 0, absl::Seconds(30));
    if (rank == 1) return absl::SleepFor(absl::Seconds(1));  // with its ring, which hangs up behind
    const absl::Status renewed = communicator->Renew(absl::Now() + absl::Milliseconds(200));
    EXPECT_TRUE(absl::IsDeadlineExceeded(renewed)) << renewed;
    EXPECT_THAT(communicator->health().ToString(), HasSubstr("another communicator takes"));
  });
  EXPECT_THAT(world.findings(), IsEmpty());
}

}  // namespace
}  // namespace bucketd::agent
