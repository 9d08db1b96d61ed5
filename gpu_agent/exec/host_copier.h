// Copies on the threads of host streams.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "gpu_agent/exec/copier.h"

namespace bucketd::agent {

// Stateless.
class HostCopier final : public Copier {
 public:
  // INVALID_ARGUMENT if the stream is not a HostStream.
  absl::Status Copy(Stream& stream, std::shared_ptr<const std::vector<Tile>> tiles) override;
};

}  // namespace bucketd::agent
