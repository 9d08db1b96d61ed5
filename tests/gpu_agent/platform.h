// The GPUs under a trainer of the tests: simulated ones, or this machine's.
#pragma once

#include <memory>

#include "gpu_agent/cuda/nccl_api.h"
#include "gpu_agent/device/module_loader.h"

namespace bucketd::agent {

std::shared_ptr<const NcclApi> Api();  // the trainer's NCCL
GpuBackend Gpus();                     // what its executor finds in this process
int Ranks();                           // for which there is room
int GpuOf(int rank);
bool Simulated();
// What a check runs in, from its begin to its end.
std::shared_ptr<void> NewMachine();

}  // namespace bucketd::agent
