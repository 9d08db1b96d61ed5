#include "gpu_agent/comm/loopback.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "gpu_agent/device/host_device.h"
#include "passes/base/status_macros.h"

namespace bucketd::agent {

absl::Status LoopbackCommunicator::Launch(Stream& stream, absl::Span<const Collective> group) {
  RETURN_IF_ERROR(health_->status());
  RETURN_IF_ERROR(ValidateGroup(group, 0, 1));
  HostStream* host = AsHostStream(stream);
  if (host == nullptr) return absl::InvalidArgumentError("loopback wants a stream of host memory");
  host->Enqueue([health = health_,
                 members = std::vector<Collective>(group.begin(), group.end())]() -> absl::Status {
    for (const Collective& member : members) {
      RETURN_IF_ERROR(health->status());
      if (member.count == 0 || member.in == member.out) continue;
      std::memcpy(member.out, member.in, static_cast<size_t>(InputBytes(member, 1)));
    }
    return health->status();
  });
  return absl::OkStatus();
}

}  // namespace bucketd::agent
