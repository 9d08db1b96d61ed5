// Splits of a trainer's communicators, which block or go on in the background as those do: there is
// no child until all ranks have come.
#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <new>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/steps.h"

// Of this program: memory that is given back holds garbage, so that whoever writes there later
// finds that it is not what it was.
void* operator new(size_t bytes) {
  void* memory = malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) abort();
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  memset(memory, 0xdd, malloc_usable_size(memory));
  asm volatile("" : : "r"(memory) : "memory");  // else it is left out: nobody may read it
  free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace bucketd::agent {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SplitTest, ParentsThatDoNotBlockGiveTheSameSteps) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    const Parents parents(2, false);
    OnRanks(kRanks, [&](int rank) {
      Trainer mine(parents, rank, {.lanes = 2});
      ASSERT_TRUE(mine.opened().ok()) << mine.opened() << ", seed " << seed;
      EXPECT_EQ(mine.Step(), "") << "seed " << seed;
    });
    world.Drain();
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
    EXPECT_EQ(Left(world), 0u) << "seed " << seed;
  }
}

// Planted: NCCL may deadlock where operations are outstanding on what is split.
TEST(SplitTest, AParentWhoseCollectivesRunIsFound) {
  for (const bool ended : {true, false}) {
    sim::World world({.devices = kRanks});
    const Parents parents(1);
    OnRanks(kRanks, [&](int rank) {
      const auto launch = [&](auto&, auto& channels) {
        const auto stream = *CudaStream::Start(rank);
        const CurrentDevice current(rank);
        void* memory = nullptr;
        cudaMallocAsync(&memory, 4, stream->get());
        for (int k = 0; k < 50; ++k) {
          Api()->AllReduce(memory, memory, 1, ncclInt32, ncclSum,
                           static_cast<ncclComm_t>(channels[0].parent), stream->get());
        }
        cudaFreeAsync(memory, stream->get());
        if (ended) stream->Drain(absl::Now() + absl::Minutes(1)).IgnoreError();
      };
      const Trainer mine(parents, rank, {.change = launch});
      EXPECT_TRUE(mine.opened().ok()) << mine.opened();
    });
    world.Drain();
    if (ended) {
      EXPECT_THAT(world.findings(), IsEmpty());
    } else {
      EXPECT_THAT(world.findings(), Contains(HasSubstr("a communicator whose collectives run")));
    }
  }
}

// A rank that fails between its arena and the split leaves nobody hanging; and whoever has given up
// is not written to when the split ends after all.
TEST(SplitTest, ARankThatComesTooLateHoldsNobodyAndHarmsNothing) {
  for (const bool blocking : {true, false}) {
    sim::World world({.devices = kRanks, .patience = absl::Seconds(10)});
    const Parents parents(1, blocking);
    std::promise<void> given_up, late;
    OnRanks(kRanks, [&](int rank) {
      if (rank == 1) {
        const auto wait = [&](auto&, auto&) { given_up.get_future().wait(); };
        const Trainer mine(parents, rank, {.timeout = 20, .change = wait});
        EXPECT_TRUE(mine.opened().ok()) << mine.opened();
        return late.set_value();
      }
      absl::Time begin;
      const auto now = [&](auto&, auto&) { begin = absl::Now(); };
      const Trainer mine(parents, rank, {.timeout = 0.5, .change = now});
      EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
      given_up.set_value();
      EXPECT_TRUE(absl::IsDeadlineExceeded(mine.opened())) << mine.opened();
      EXPECT_THAT(mine.opened().ToString(), HasSubstr("a split took longer than its timeout"));
      late.get_future().wait();
    });
    // A parent's that does not block is nobody's to end.
    const size_t left = blocking ? 0 : 1;
    EXPECT_EQ(Left(world, left), left);
    EXPECT_THAT(world.findings(), IsEmpty()) << (blocking ? "blocking" : "in the background");
  }
}

}  // namespace
}  // namespace bucketd::agent
