// NCCL's communicator held to the contract of every communicator, on simulated GPUs: a world, of
// another seed, for each process group of the test.
#include <memory>
#include <vector>

#include "gmock/gmock.h"

#include "gpu_agent/cuda/nccl_communicator.h"
#include "tests/gpu_agent/communicator_factory.h"
#include "tests/gpu_agent/cudasim/gpus.h"

namespace bucketd::agent {
namespace {

constexpr int kMaxRanks = 3;

class SimulatedGroup final : public CommunicatorGroup {
 public:
  SimulatedGroup(const GroupOptions& options, uint64_t seed)
      : options_(options), world_({.seed = seed, .devices = kMaxRanks}) {
    world_.nccl_api()->GetUniqueId(&id_);
    devices_made = 0;
  }
  // Whatever was made in it is gone.
  ~SimulatedGroup() override {
    world_.Drain();
    EXPECT_THAT(world_.findings(), testing::IsEmpty());
    EXPECT_EQ(world_.allocations(), 0u);
  }
  SimulatedGroup(const SimulatedGroup&) = delete;
  SimulatedGroup& operator=(const SimulatedGroup&) = delete;

  absl::StatusOr<std::unique_ptr<Communicator>> Make(int rank) override {
    auto& device = devices_[static_cast<size_t>(rank)];
    device = NewGpu(rank);
    return NcclCommunicator::Create(world_.nccl_api(), *device,
                                    {std::string(id_.internal, sizeof(id_.internal)), rank,
                                     options_.size, "group", options_.timeout, nullptr});
  }

  static std::unique_ptr<CudaDevice> NewGpu(int index) {
    return std::make_unique<CudaDevice>(index, "cuda simulated", sim::World::now()->nccl_api());
  }
  // The test asks for its ranks' in their order.
  static std::unique_ptr<Device> NextGpu() { return NewGpu(devices_made++); }

 private:
  static int devices_made;

  const GroupOptions options_;
  sim::World world_;
  ncclUniqueId id_;
  std::unique_ptr<CudaDevice> devices_[kMaxRanks];  // of the communicators
};

int SimulatedGroup::devices_made = 0;

// An average is a sum of parts: exact for sizes that are powers of two.
bool NcclTakes(const Collective& collective, int size) {
  if (collective.op == ReduceOp::kAvg && (size & (size - 1)) != 0) return false;
  return InNcclTerms(collective, NCCL_VERSION_CODE).ok();
}

}  // namespace

// Each seed is a kind of its own to the test.
const std::vector<CommunicatorFactory>& Factories() {
  static const std::vector<CommunicatorFactory> factories = [] {
    std::vector<CommunicatorFactory> all;
    for (uint64_t seed = 1; seed <= Seeds(280); ++seed) {  // of 18 worlds each: 5,040
      all.push_back({.name = "Seed" + std::to_string(seed),
                     .max_ranks = kMaxRanks,
                     .ring_order = false,
                     .tells_of_peers = false,
                     .takes = NcclTakes,
                     .new_device = SimulatedGroup::NextGpu,
                     .new_group = [seed](const GroupOptions& options) {
                       return std::make_unique<SimulatedGroup>(options, seed);
                     }});
    }
    return all;
  }();
  return factories;
}

}  // namespace bucketd::agent
