// Whether all ranks of a communicator are about to do the same.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu_agent/comm/communicator.h"
#include "gpu_agent/device/stream.h"
#include "passes/base/digest.h"

namespace bucketd::agent {

// One all-gather of 40 bytes a rank, of the communicator's device. Blocks until it is done or the
// deadline. FAILED_PRECONDITION where ranks differ: "ranks of `group` differ: ranks 0, 1, 3 have
// plan 12ab34cd of epoch 7, rank 2 has plan 56ef78ab of epoch 7".
absl::Status Agree(Device& device, Stream& stream, Communicator& communicator,
                   const std::string& group, const Digest& digest, uint64_t epoch,
                   absl::Time deadline);

// Whether it is true on all ranks: one all-gather of a byte a rank, else as above.
absl::StatusOr<bool> OnAllRanks(Device& device, Stream& stream, Communicator& communicator,
                                bool mine, absl::Time deadline);

}  // namespace bucketd::agent
