// What a job's agreement leaves behind: kept in the store (pins.h), read before a scope gathers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "passes/base/digest.h"
#include "server/plans/plan_reply.h"

namespace bucketd {

using JobName = std::pair<std::string, std::string>;  // tenant, id

// The plan of one scope.
struct Pin {
  uint64_t generation = 0;  // the latest that agreed on it
  uint32_t size = 0;
  std::string plan_key;
  std::string profile_as_asked;
  Digest plan_sha256{};
};

// The pin that stands, with its plan: the one that was to be written, or one that another server
// was first with.
struct StandingPin {
  Pin pin;
  absl::StatusOr<PlanReplyPtr> reply;  // else why the store did not give it
};

struct JobMemory {
  uint64_t generation = 0;
  std::optional<std::string> unplanned;                       // why
  std::vector<std::pair<std::string, std::string>> profiles;  // as asked, "name@version"
  std::string last_scope;                                     // the latest that was agreed on
  uint32_t ranks = 0;                                         // of its largest scope
};

}  // namespace bucketd
