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

}  // namespace bucketd::agent
