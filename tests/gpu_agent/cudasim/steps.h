// A trainer's steps in a simulated world.
#pragma once

#include <functional>

#include "tests/gpu_agent/cudasim/gpus.h"
#include "tests/gpu_agent/trainer.h"

namespace bucketd::agent {

// To the end of all that was enqueued.
inline void OnGpus(sim::World& world, int lanes, const std::function<void(Trainer&, int)>& run,
                   double timeout = 30) {
  OnGpus(lanes, run, timeout);
  world.Drain();
}

// Communicators that NCCL has not ended, once they are as few as `expected`: it ends them behind
// the scenes.
inline size_t Left(sim::World& world, size_t expected = 0) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (world.communicators() != expected && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return world.communicators();
}

}  // namespace bucketd::agent
