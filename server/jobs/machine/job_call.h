// For which ranks of which job a call speaks, checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "server/base/shares.h"

namespace bucketd::v1 {
class Job;
}  // namespace bucketd::v1

namespace bucketd {

struct ScopeRecords;  // pins.h; not looked into here

inline constexpr uint32_t kMaxRanksOfScope = 131'072;

struct JobCall {
  std::string tenant;
  std::string id;
  uint64_t generation = 0;
  std::string scope;
  std::vector<uint32_t> ranks;  // ascending, at least one, all below `size`
  uint32_t size = 0;            // 1 .. kMaxRanksOfScope
  bool fresh = false;
  Shares::Path share = {"", ""};                     // ShareOf whoever calls
  std::shared_ptr<const ScopeRecords> records = {};  // null: they have not been read
};

// JOB_INVALID names the field. O(ranks log ranks).
absl::StatusOr<JobCall> ReadJob(absl::string_view tenant, const v1::Job& job);

}  // namespace bucketd
