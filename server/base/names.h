// What tenants, jobs and ranks are called in requests and in errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bucketd {

inline constexpr size_t kMaxTenantBytes = 128;
inline constexpr size_t kMaxJobNameBytes = 256;

// Up to kMaxTenantBytes printable ASCII characters without spaces, else REQUEST_MALFORMED.
absl::Status CheckTenant(absl::string_view tenant);
// JOB_INVALID unless 1 to kMaxJobNameBytes printable ASCII characters.
absl::Status CheckJobName(absl::string_view field, absl::string_view name);

// "rank 3", "ranks 0-2, 4 and 7-9"; a long list is cut and counted. `ascending` is not empty.
std::string NameRanks(absl::Span<const uint32_t> ascending);

}  // namespace bucketd
