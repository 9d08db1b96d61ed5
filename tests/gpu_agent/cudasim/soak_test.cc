// What an executor on a GPU keeps from step to step: nothing, under any seed.
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/steps.h"

namespace bucketd::agent {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Lt;

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

// A world in which ranks take steps: `run` is one's, and nothing is left of it.
void InAWorld(uint64_t seed, int lanes,
              const std::function<void(sim::World&, Soak&, int rank)>& run) {
  sim::World world({.seed = seed, .devices = kRanks, .pace = 8});
  OnGpus(world, lanes, [&](Trainer& mine, int rank) {
    Soak soak(mine);
    run(world, soak, rank);
  });
  EXPECT_THAT(world.findings(), IsEmpty()) << "seed " << seed;
  EXPECT_EQ(world.allocations(), 0u) << "seed " << seed;
  EXPECT_EQ(world.events(), 0u) << "seed " << seed;
}

TEST(SoakOnGpusTest, NoMemoryAndNoEventIsLeftUnderAnySeed) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    InAWorld(seed, 1 + static_cast<int>(seed % 2),
             [](sim::World&, Soak& soak, int) { soak.Run(24); });
  }
}

// What would go with the executor, too. How much is there at once hangs on when the host looks, and
// may jump: what grows with the steps grows in each hundred of them.
TEST(SoakOnGpusTest, NothingGrowsWithTheSteps) {
  constexpr int kSteps = 100, kRounds = 5;
  std::barrier<> together(kRanks);
  InAWorld(1, 2, [&](sim::World& world, Soak& soak, int rank) {
    std::vector<int> memory, events;
    for (int round = 0; round <= kRounds; ++round) {
      soak.Run(kSteps);
      together.arrive_and_wait();
      memory.push_back(static_cast<int>(world.allocations()));
      events.push_back(world.events_made(rank));
      together.arrive_and_wait();
    }
    for (auto* counts : {&memory, &events}) {
      std::adjacent_difference(counts->begin(), counts->end(), counts->begin());
      EXPECT_THAT(*counts, Contains(Lt(kSteps / 2)));  // the first is no difference, and more
    }
  });
}

}  // namespace
}  // namespace bucketd::agent
