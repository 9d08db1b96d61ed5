// Where a plan came from, as the wire says it.
#pragma once

#include "proto/planner.pb.h"
#include "server/base/metrics.h"

namespace bucketd {

inline v1::PlanSource SourceOf(PlanOutcome outcome) {
  switch (outcome) {
    case PlanOutcome::kComputed:
      return v1::PLAN_SOURCE_COMPUTED;
    case PlanOutcome::kJoined:
      return v1::PLAN_SOURCE_JOINED;
    case PlanOutcome::kPinned:
      return v1::PLAN_SOURCE_PINNED;
    default:
      return v1::PLAN_SOURCE_HIT;
  }
}

inline PlanOutcome OutcomeOf(v1::PlanSource source) {
  switch (source) {
    case v1::PLAN_SOURCE_COMPUTED:
      return PlanOutcome::kComputed;
    case v1::PLAN_SOURCE_JOINED:
      return PlanOutcome::kJoined;
    case v1::PLAN_SOURCE_PINNED:
      return PlanOutcome::kPinned;
    default:
      return PlanOutcome::kHit;
  }
}

}  // namespace bucketd
