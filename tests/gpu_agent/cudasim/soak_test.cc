// What an executor on a GPU keeps from step to step: nothing, under any seed.
#include <barrier>
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/steps.h"

namespace bucketd::agent {
namespace {

using ::testing::IsEmpty;

// Steps with tensors at addresses that no step had before, which want new tables of copies, and
// steps with those of a few steps ago, which want none. Every fourth is enqueued behind the one
// before it, which nobody has waited for.
class Soak {
 public:
  explicit Soak(Trainer& trainer) : trainer_(trainer) {
    for (int k = 0; k < 3; ++k) again_.push_back(trainer.Prepare());
  }
  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      Trainer::StepData& known = *again_[static_cast<size_t>(step) % again_.size()];
      if (step % 4 == 3) {
        trainer_.Upload(known);
        EXPECT_EQ(trainer_.Enqueue(known, {0, 1, 2, 3}, Fault::kNone), "");
      }
      if (step % 2 == 0) {
        EXPECT_EQ(trainer_.Step({2, 0, 3, 1}), "");
      } else {
        trainer_.Upload(known);
        EXPECT_EQ(trainer_.Enqueue(known, {0, 1, 2, 3}, Fault::kNone), "");
        EXPECT_EQ(trainer_.Check(known), "");
      }
    }
  }

 private:
  Trainer& trainer_;
  std::vector<std::unique_ptr<Trainer::StepData>> again_;
};

TEST(SoakOnGpusTest, MemoryAndEventsStayFlatUnderEverySeed) {
  constexpr int kSteps = 16;
  for (uint64_t seed = 1; seed <= Seeds(500); ++seed) {
    sim::World world({.seed = seed, .devices = kRanks});
    std::barrier<> together(kRanks);
    OnGpus(world, 1 + static_cast<int>(seed % 2), [&](Trainer& mine, int rank) {
      Soak soak(mine);
      soak.Run(kSteps);
      together.arrive_and_wait();
      const size_t live = world.allocations();
      const int events = world.events_made(rank);
      together.arrive_and_wait();
      soak.Run(2 * kSteps);
      together.arrive_and_wait();
      // Tables that are gone are freed behind their last copies, a few steps later.
      EXPECT_LE(world.allocations(), live + 8) << "seed " << seed;
      // As many as were in flight at once; without a second use there would be ten times as many.
      EXPECT_LE(world.events_made(rank), events + events / 2) << "seed " << seed;
      together.arrive_and_wait();
    });
    EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
    EXPECT_EQ(world.allocations(), 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace bucketd::agent
