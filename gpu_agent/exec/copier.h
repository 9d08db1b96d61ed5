// What runs copies where a device's memory is: threads of the host, kernels of a GPU.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "gpu_agent/device/stream.h"
#include "gpu_agent/pack/segments.h"

namespace bucketd::agent {

// Thread-safe.
class Copier {
 public:
  virtual ~Copier() = default;
  // Enqueues the tiles, all in one launch. What they point to stays until the stream is past them.
  virtual absl::Status Copy(Stream& stream, std::shared_ptr<const std::vector<Tile>> tiles) = 0;
};

}  // namespace bucketd::agent
