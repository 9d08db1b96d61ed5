// What gpu_checks is made of: parts that print a table and say whether all was right.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace bucketd::agent {

enum class Verdict { kRight = 0, kWrong = 1, kGoalMissed = 2, kNoGpu = 3 };

// Ends the program (1) with CUDA's words if it is an error: nothing goes on after one.
void Must(cudaError_t error, absl::string_view what);

// Kernels against the host's copies, bit for bit, on lists of random segments; every tensor is an
// allocation of its own, so that a memory checker sees what reaches outside.
Verdict CheckBits();
// Speed against other ways to copy, verified bit for bit as well; lines of tab-separated values for
// checks/torch_ops.py go to `tsv`.
Verdict MeasureCopies(const std::string& tsv);
// Bucket memory that two processes share, one of them killed. Forks: before any use of CUDA.
Verdict CheckSharing();

}  // namespace bucketd::agent
