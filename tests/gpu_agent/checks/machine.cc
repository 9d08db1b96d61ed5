// A trainer's GPUs as this machine's: several ranks are threads on its first GPU, as far as NCCL
// has that (from 2.30 on; GPU_CHECKS_RANKS says how many).
#include <algorithm>
#include <cstdlib>

#include "tests/gpu_agent/platform.h"

namespace bucketd::agent {

std::shared_ptr<const NcclApi> Api() {
  static const auto* api = new absl::StatusOr<std::shared_ptr<const NcclApi>>(NcclApi::Load());
  return api->ok() ? **api : nullptr;
}

// After the trainer's NCCL: the executor's has to be the one that is in the process.
GpuBackend Gpus() {
  if (Api() == nullptr) return {nullptr, 0, "there is no NCCL"};
  return LoadGpuBackend();
}

int Ranks() {
  const char* most = std::getenv("GPU_CHECKS_RANKS");
  return most == nullptr ? 1 : std::clamp(std::atoi(most), 1, 2);
}

int GpuOf(int /*rank*/) { return 0; }

bool Simulated() { return false; }

std::shared_ptr<void> NewMachine() { return nullptr; }

}  // namespace bucketd::agent
