// Whether all ranks of a communicator are about to do the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "gpu_agent/comm/communicator.h"
#include "passes/base/digest.h"

namespace bucketd::agent {

// What every rank says, in the order of the ranks and of one size, by one all-gather over the
// communicator's host(). Blocks until it is done; at the deadline that is aborted.
absl::StatusOr<std::vector<std::byte>> Exchange(Communicator& communicator,
                                                absl::Span<const std::byte> mine,
                                                absl::Time deadline);

// FAILED_PRECONDITION where ranks differ: "ranks of `group` differ: ranks 0, 1, 3 have plan
// 12ab34cd of epoch 7, rank 2 has plan 56ef78ab of epoch 7". Blocks as Exchange does.
absl::Status Agree(Communicator& communicator, const std::string& group, const Digest& digest,
                   uint64_t epoch, absl::Time deadline);

// Whether it is true on all ranks.
absl::StatusOr<bool> OnAllRanks(Communicator& communicator, bool mine, absl::Time deadline);

}  // namespace bucketd::agent
