// Cost profile files: the referee's nine numbers first, then "comm_copy_share" and "device", which
// may be missing where they are the defaults, then "links" and "kernels", the measured rows.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "passes/cost/profile.h"

namespace bucketd {

absl::StatusOr<CostProfile> ProfileFromJson(absl::string_view json, std::string name);
std::string ProfileToJson(const CostProfile& profile);
// Built in: h100_nvlink (the default), h100_launch, slow_network, small_batch, cpu_loopback.
absl::Span<const CostProfile> BuiltInProfiles();
// A built-in name, or a file. NOT_FOUND lists the names.
absl::StatusOr<CostProfile> FindProfile(const std::string& name_or_file);

}  // namespace bucketd
