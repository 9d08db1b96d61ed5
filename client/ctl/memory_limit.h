// --memory-limit: "1.05x", "+5%", "38GiB" or bytes.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "passes/pass/options.h"

namespace bucketd::ctl {

// Sets memory_limit_ppm for a share of program order's peak, else memory_limit_bytes. OUT_OF_RANGE
// says what was expected.
absl::Status ParseMemoryLimit(absl::string_view text, PlanOptions& options);

}  // namespace bucketd::ctl
