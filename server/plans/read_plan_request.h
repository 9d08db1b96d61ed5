// A GetPlan call, checked.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "server/costs/cost_catalog.h"
#include "server/plans/plan_request.h"

namespace bucketd::v1 {
class GetPlanRequest;
}  // namespace bucketd::v1

namespace bucketd {

// Takes the inline graph out of `message`. Errors carry a reason and say what is known. The profile
// is what `costs` says it is now.
absl::StatusOr<std::shared_ptr<PlanRequest>> ReadPlanRequest(v1::GetPlanRequest& message,
                                                             const CostCatalog& costs);

}  // namespace bucketd
