#include "gpu_agent/exec/host_copier.h"

#include <utility>

#include "gpu_agent/device/host_device.h"

namespace bucketd::agent {
namespace {

bool IsBrief(const std::vector<Tile>& tiles) {
  constexpr size_t kTiles = 64;
  if (tiles.size() > kTiles) return false;
  int64_t bytes = 0;
  for (const Tile& tile : tiles) bytes += int64_t{tile.count} * WriteSize(tile.move);
  return bytes <= kBriefBytes;
}

}  // namespace

absl::Status HostCopier::Copy(Stream& stream, std::shared_ptr<const std::vector<Tile>> tiles) {
  HostStream* host = AsHostStream(stream);
  if (host == nullptr) return absl::InvalidArgumentError("a copy on the host wants a host stream");
  const bool brief = IsBrief(*tiles);
  auto copy = [tiles = std::move(tiles)] {
    CopyOnHost(*tiles);
    return absl::OkStatus();
  };
  brief ? host->EnqueueBrief(std::move(copy)) : host->Enqueue(std::move(copy));
  return absl::OkStatus();
}

}  // namespace bucketd::agent
