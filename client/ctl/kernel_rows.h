// Measured graphs to the rows of a profile that price the same kernels in any graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "passes/cost/profile.h"

namespace bucketd::ctl {

struct KernelRows {
  int64_t nodes = 0;      // that were measured
  size_t signatures = 0;  // of them, each a row
};

// Puts what `paths` (of bucketd.kernel_times) measured into the profile, over rows of the same
// signature: the mean of the kernels that share it. FAILED_PRECONDITION: a graph without measured
// times.
absl::StatusOr<KernelRows> AddKernelRows(const std::vector<std::string>& paths,
                                         CostProfile& profile);

}  // namespace bucketd::ctl
