// The device of host memory: every backend that moves bytes with the processor works on it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu_agent/device/host_stream.h"
#include "gpu_agent/device/stream.h"

namespace bucketd::agent {

// Thread-safe. Any two of them are the same device.
class HostDevice final : public Device {
 public:
  std::string name() const override { return "host"; }
  // What it holds is unspecified. INVALID_ARGUMENT for negative sizes, RESOURCE_EXHAUSTED without
  // memory; a buffer of no bytes is one that nobody may read.
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override;
  // Its streams are HostStreams.
  absl::StatusOr<std::unique_ptr<Stream>> NewStream(const std::string& name) override;
  absl::Status Copy(Stream& stream, const void* from, void* to, int64_t bytes) override;
  absl::Status CopyTiles(Stream& stream, TileList tiles) override;
};

// The stream as one that runs closures, or null if it is another device's.
HostStream* AsHostStream(Stream& stream);

}  // namespace bucketd::agent
