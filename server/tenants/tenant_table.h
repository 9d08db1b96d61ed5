// What each tenant may have: the tenants file.
//
//   [[tenant]]
//   name = "team-a"        # "": the default one
//   weight = 2             # of computing, beside the others'; that of [others] if not said, else 1
//   pins = 4096            # plans that jobs are pinned to, and jobs
//   plan_bytes = "10 GiB"  # of plans in the store
//   graph_bytes = "1 GiB"  # of graphs in memory
//   uploads = 16           # at a time
//   computations = 64      # that wait or run
//
//   [others]               # of tenants without an entry, and where an entry leaves one out
//
// What neither says is not bounded, but for pins: --max-pins-per-tenant.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bucketd {

enum class Quota { kPins, kPlanBytes, kGraphBytes, kUploads, kComputations };
inline constexpr size_t kQuotas = static_cast<size_t>(Quota::kComputations) + 1;
absl::string_view Name(Quota quota);  // as the file has it
inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

struct TenantLimits {
  TenantLimits() { most.fill(kUnbounded); }

  std::array<int64_t, kQuotas> most;
  int64_t weight = 1;

  // Of nothing else.
  static TenantLimits OfPins(int64_t most) {
    TenantLimits limits;
    limits.most[static_cast<size_t>(Quota::kPins)] = most;
    return limits;
  }
  int64_t of(Quota quota) const { return most[static_cast<size_t>(quota)]; }
};

struct TenantTable {
  static constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
  static constexpr size_t kMaxTenants = 200;  // each has series of its own among the metrics
  static constexpr int64_t kMaxWeight = 1000;

  std::map<std::string, TenantLimits, std::less<>> named;
  TenantLimits others;

  const TenantLimits& Of(absl::string_view tenant) const;
  // `unsaid`: what holds where the file says nothing. INVALID_ARGUMENT: every problem, one a line,
  // as "PATH:LINE: what was expected".
  static absl::StatusOr<TenantTable> Parse(absl::string_view text, const std::string& path,
                                           const TenantLimits& unsaid);
  static absl::StatusOr<TenantTable> Read(const std::string& path, const TenantLimits& unsaid);
};

}  // namespace bucketd
