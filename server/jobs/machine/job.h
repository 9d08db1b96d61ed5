// One job in its generation: what all of its scopes have in common.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "server/base/clock.h"
#include "server/base/shares.h"
#include "server/jobs/machine/context.h"
#include "server/jobs/machine/pin.h"
#include "server/plans/plan_request.h"

namespace bucketd {

struct Job {
  // What a name like `latest` stands for in a generation.
  struct FixedProfile {
    std::string id;      // "name@version"
    ProfilePtr profile;  // null until it is first used after a restart
  };

  JobName name;
  uint64_t generation = 0;
  bool loaded = false;  // its memory has been read from the store
  std::optional<std::string> unplanned;
  bool unplanned_is_stored = false;
  std::map<std::string, FixedProfile> profiles;  // by what was asked for
  std::map<std::string, std::unique_ptr<Scope>> scopes;
  std::string last_agreed;  // scope
  uint32_t ranks = 0;       // of its largest scope
  Shares::Path share;       // of whoever made its first call
  // The following are job_places.h's.
  Shares::Id number = 0;
  int64_t waiting = 0;       // calls
  int64_t kept_bytes = 0;    // of signatures, requests and plans that its scopes keep
  uint64_t spare_since = 0;  // 0: it is needed
  SteadyTime used;
  std::list<Job*>::iterator at;  // in the order of use

  // The first request that names a profile fixes, for its generation, which version that is: that
  // one or none, since other scopes may be running with it. STORE_UNAVAILABLE passes,
  // PROFILE_UNREADABLE stays.
  absl::Status UseFixedProfile(PlanRequest& request, const Surroundings& around);
  // Generations count restarts, and a later one ends those before it: JOB_INVALID for a call with a
  // number that no count leads to.
  absl::Status CheckStep(uint64_t called) const;
  // As it is kept beyond the process.
  JobMemory Memory() const;
};

// A line of the log about a scope, and what it says besides which one that is.
Note NoteOn(const Job& job, const std::string& scope, absl::string_view text,
            std::vector<LogField> more);

}  // namespace bucketd
