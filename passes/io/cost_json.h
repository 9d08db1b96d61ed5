// Measured costs as JSON: "links" and "kernels" of a profile file, and files of samples.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"

#include "passes/cost/cost_report.h"
#include "passes/cost/measured_kernel.h"
#include "passes/cost/measured_link.h"

namespace bucketd {

// {"profile": NAME, "reporter": HOST, "job", "tool", "device", "samples": [{"kind": "all_gather",
// "dtype": "bf16", "group_size", "ranks_per_node", "link_class", "mesh_dim", "mode": "packed" |
// "grouped", "launches", "bytes", "picoseconds"}, ...]}. INVALID_ARGUMENT names the place; samples
// are Validate()d.
absl::StatusOr<CostReport> CostReportFromJson(absl::string_view text);

namespace internal {

absl::StatusOr<std::vector<MeasuredLink>> LinksFromJson(const nlohmann::json& value);
// The member with its comma and newline; "" if there are no rows.
std::string LinksJson(absl::Span<const MeasuredLink> links);
absl::StatusOr<std::vector<MeasuredKernel>> KernelsFromJson(const nlohmann::json& value);
std::string KernelsJson(absl::Span<const MeasuredKernel> kernels);

}  // namespace internal
}  // namespace bucketd
