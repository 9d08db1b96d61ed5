// What a caller gets that asked for a plan.
#pragma once

#include <cstdint>
#include <string>

#include "server/base/metrics.h"
#include "server/plans/plan_reply.h"

namespace bucketd {

struct PlanAnswer {
  PlanOutcome outcome = PlanOutcome::kError;  // never kError in an answer
  PlanReplyPtr reply;                         // null for kGraphRequired and kUnplanned
  int64_t upload_lease_ms = 0;                // kGraphRequired
  std::string unplanned = {};                 // kUnplanned: why
  bool is_kept = true;  // else, of ranks: no pin says what they agreed on, and whoever answers may
                        // be the only one that has it
};

}  // namespace bucketd
