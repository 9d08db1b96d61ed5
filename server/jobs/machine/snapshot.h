// Jobs and scopes as people and status pages see them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/base/clock.h"

namespace bucketd {

struct Job;

struct ScopeSnapshot {
  std::string name;
  std::string stage;  // "gathering", "agreed", ...
  uint32_t size = 0;
  int64_t ranks_waiting = 0;
  std::string plan_sha256;  // hex; of an agreed scope
  bool pinned = false;
  std::string error;              // of a failed scope
  double seconds = 0.0;           // since its first rank came
  std::vector<uint32_t> missing;  // while ranks are waited for: the first kMaxSnapshotMissing
};
struct JobSnapshot {
  std::string tenant;
  std::string id;
  uint64_t generation = 0;
  std::optional<std::string> unplanned;
  std::vector<ScopeSnapshot> scopes;  // by name, at most kMaxSnapshotScopes
};
inline constexpr size_t kMaxSnapshotScopes = 64;
inline constexpr size_t kMaxSnapshotMissing = 64;

JobSnapshot SnapshotOf(const Job& job, SteadyTime now);

}  // namespace bucketd
