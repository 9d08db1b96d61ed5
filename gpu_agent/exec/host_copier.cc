#include "gpu_agent/exec/host_copier.h"

#include <utility>

#include "gpu_agent/device/host_device.h"

namespace bucketd::agent {
absl::Status HostCopier::Copy(Stream& stream, std::shared_ptr<const std::vector<Tile>> tiles) {
  HostStream* host = AsHostStream(stream);
  if (host == nullptr) return absl::InvalidArgumentError("a copy on the host wants a host stream");
  host->Enqueue([tiles = std::move(tiles)] {
    CopyOnHost(*tiles);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

}  // namespace bucketd::agent
