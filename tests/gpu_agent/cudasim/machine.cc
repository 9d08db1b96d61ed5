// What a check runs in, as a simulated world.
#include "gmock/gmock.h"

#include "tests/gpu_agent/cudasim/world.h"
#include "tests/gpu_agent/platform.h"

namespace bucketd::agent {

std::shared_ptr<void> NewMachine() {
  return {new sim::World({.devices = Ranks(), .resident = 2}), [](sim::World* world) {
            world->Drain();
            EXPECT_THAT(world->findings(), testing::IsEmpty());
            delete world;
          }};
}

}  // namespace bucketd::agent
