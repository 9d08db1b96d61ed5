// The kinds of communicator that the host has.
#include <memory>
#include <vector>

#include "gpu_agent/device/host_device.h"
#include "tests/gpu_agent/communicator_factory.h"
#include "tests/gpu_agent/ring_group.h"

namespace bucketd::agent {
namespace {

std::unique_ptr<Device> NewHost() { return std::make_unique<HostDevice>(); }

}  // namespace

const std::vector<CommunicatorFactory>& Factories() {
  static const std::vector<CommunicatorFactory> factories = {
      {.name = "RingUnix",
       .max_ranks = 5,
       .ring_order = true,
       .new_device = NewHost,
       .new_group = [](const GroupOptions& o) { return std::make_unique<RingGroup>(o, false); }},
      {.name = "RingInGloosOrder",
       .max_ranks = 5,
       .ring_order = true,
       .order = RingOrder::kGloo,
       .new_device = NewHost,
       .new_group =
           [](const GroupOptions& o) {
             return std::make_unique<RingGroup>(o, false, RingOrder::kGloo);
           }},
      {.name = "RingTcp",
       .max_ranks = 5,
       .ring_order = true,
       .new_device = NewHost,
       .new_group = [](const GroupOptions& o) { return std::make_unique<RingGroup>(o, true); }},
  };
  return factories;
}

}  // namespace bucketd::agent
